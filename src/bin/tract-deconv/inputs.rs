//! Finds a model's inputs: in named files, in an io.npz beside the model, or from a seeded
//! generator.

use crate::args::{InputShape, ModelArgs};
use crate::arrays::{Arrays, read_npy, read_npz};
use crate::failure::usage;
use crate::model::{Input, ModelFile};
use std::collections::HashMap;
use std::path::Path;
use tract_core::internal::*;

/// The inputs of a run.
pub struct Inputs {
    /// One tensor per input of the model.
    pub tensors: Vec<Arc<Tensor>>,
    /// The values of the symbols in the inputs' shapes.
    pub symbols: Vec<(String, i64)>,
    /// The source of each input, one line each.
    pub notes: Vec<String>,
    /// The npz that gave the inputs, with all its arrays.
    pub archive: Option<(String, Arrays)>,
}

/// Finds every input. `check` is the archive of `run --check`.
pub fn resolve(
    declared: &[Input],
    args: &ModelArgs,
    file: &ModelFile,
    check: Option<(&Path, &Arrays)>,
) -> TractResult<Inputs> {
    let mut found: HashMap<String, (Arc<Tensor>, String)> = HashMap::new();
    let mut notes = vec![];
    let mut archive = None;
    if !args.input.is_empty() {
        for text in &args.input {
            take_named(text, declared, &mut found)?;
        }
    } else if let Some((path, arrays)) = check {
        found = members(declared, arrays, path);
        archive = Some((path.display().to_string(), arrays.clone()));
    } else if let Some(path) = &file.io {
        let arrays = read_npz(path)?;
        let members = members(declared, &arrays, path);
        match bind(declared, &members) {
            Ok(_) => {
                found = members;
                archive = Some((path.display().to_string(), arrays));
            }
            Err(why) => notes.push(format!("{} is left aside: {why:#}", path.display())),
        }
    }
    let symbols = bind(declared, &found)?;
    let missing: Vec<&Input> = declared.iter().filter(|input| !found.contains_key(&input.name)).collect();
    all_bound(declared, &missing, &symbols, ", their shapes with --input-shape, or arrays with --input")?;
    let mut random = Random(args.seed);
    let mut tensors = vec![];
    for input in declared {
        let (tensor, from) = match found.remove(&input.name) {
            Some(given) => given,
            None => {
                let shape = input
                    .shape
                    .as_ref()
                    .ok_or_else(|| usage!("{}, or the input with --input {}=x.npy", undeclared(input), input.name))?;
                let shape: TVec<usize> =
                    shape.iter().map(|dim| Ok(dim.eval(&symbols).to_usize()?)).collect::<TractResult<_>>()?;
                (random.tensor(input.datum_type, &shape)?, format!("random, seed {}", args.seed))
            }
        };
        notes.push(format!("input {} {} {:?}: {from}", input.name, times(tensor.shape()), tensor.datum_type()));
        tensors.push(tensor);
    }
    Ok(Inputs { tensors, symbols: named(declared, &symbols), notes, archive })
}

/// Formats a shape as `1×3×64×64`.
pub fn times(shape: &[usize]) -> String {
    match shape {
        [] => "scalar".into(),
        _ => shape.iter().map(|d| d.to_string()).collect::<Vec<_>>().join("×"),
    }
}

/// Reads one `--input`: an archive, or NAME=x.npy.
fn take_named(text: &str, declared: &[Input], found: &mut HashMap<String, (Arc<Tensor>, String)>) -> TractResult<()> {
    let names = || declared.iter().map(|input| input.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some((name, path)) = text.split_once('=')
        && !Path::new(text).exists()
    {
        if !declared.iter().any(|input| input.name == name) {
            return Err(usage!("--input {text}: the model's inputs are {}", names()));
        }
        found.insert(name.to_string(), (read_npy(Path::new(path))?, path.to_string()));
        return Ok(());
    }
    if text.ends_with(".npy") {
        return Err(usage!("--input {text}: an npy file needs the input's name, one of {}: NAME={text}", names()));
    }
    let arrays = read_npz(Path::new(text))?;
    let members = members(declared, &arrays, Path::new(text));
    ensure!(!members.is_empty(), "{text}: no array is named after an input of the model ({})", names());
    found.extend(members);
    Ok(())
}

/// Returns the arrays of an archive that are inputs of the model: `in__NAME`, or else `NAME`.
fn members(declared: &[Input], arrays: &Arrays, path: &Path) -> HashMap<String, (Arc<Tensor>, String)> {
    let find = |key: &str| arrays.iter().find(|(name, _)| name == key).map(|(_, tensor)| tensor.clone());
    declared
        .iter()
        .filter_map(|input| {
            let tensor = find(&format!("in__{}", input.name)).or_else(|| find(&input.name))?;
            Some((input.name.clone(), (tensor, path.display().to_string())))
        })
        .collect()
}

/// Checks arrays against the declared inputs, and takes the symbols' values from their shapes.
fn bind(declared: &[Input], found: &HashMap<String, (Arc<Tensor>, String)>) -> TractResult<SymbolValues> {
    let mut symbols = SymbolValues::default();
    let given = || declared.iter().filter_map(|input| Some((input, &found.get(&input.name)?.0)));
    for (input, tensor) in given() {
        ensure!(
            tensor.datum_type() == input.datum_type,
            "input {}: datum_type={:?}, the model declares {:?}",
            input.name,
            tensor.datum_type(),
            input.datum_type
        );
        let Some(shape) = &input.shape else { continue };
        ensure!(shape.len() == tensor.rank(), "{}", shape_mismatch(input, tensor));
        for (dim, size) in shape.iter().zip(tensor.shape()) {
            if let TDim::Sym(symbol) = dim
                && symbols.get(symbol).is_none()
            {
                symbols.set(symbol, *size as i64);
            }
        }
    }
    for (input, tensor) in given() {
        for (dim, size) in input.shape.iter().flatten().zip(tensor.shape()) {
            let value = dim.eval(&symbols).as_i64();
            ensure!(value.is_none_or(|value| value == *size as i64), "{}", shape_mismatch(input, tensor));
        }
    }
    Ok(symbols)
}

fn shape_mismatch(input: &Input, tensor: &Tensor) -> String {
    let declared: Vec<String> = input.shape.iter().flatten().map(|dim| dim.to_string()).collect();
    format!("input {}: shape={}, the model declares {}", input.name, times(tensor.shape()), declared.join("×"))
}

/// Fails if the shape of a missing input has a symbol without a value.
///
/// The message names the flags to set, and then `or`, which names alternatives.
fn all_bound(declared: &[Input], missing: &[&Input], symbols: &SymbolValues, or: &str) -> TractResult<()> {
    let dims = missing.iter().flat_map(|input| input.shape.iter().flatten());
    let mut names: Vec<String> =
        dims.flat_map(|dim| dim.eval(symbols).symbols()).map(|symbol| symbol.to_string()).collect();
    if names.is_empty() {
        return Ok(());
    }
    names.sort();
    names.dedup();
    let flags: Vec<String> = names.iter().map(|name| format!("--set {name}=N")).collect();
    let shapes: Vec<String> = declared.iter().map(|input| input.to_string()).collect();
    Err(usage!(
        "the model's inputs ({}) have symbolic dimensions: give them values with {}{or}",
        shapes.join(", "),
        flags.join(" ")
    ))
}

/// Returns the names and values of the inputs' symbols that have a value.
pub fn named(declared: &[Input], symbols: &SymbolValues) -> Vec<(String, i64)> {
    let dims = declared.iter().flat_map(|input| input.shape.iter().flatten());
    let mut values: Vec<(String, i64)> = dims
        .flat_map(|dim| dim.symbols())
        .filter_map(|symbol| Some((symbol.to_string(), symbols.get(&symbol)?)))
        .collect();
    values.sort();
    values.dedup();
    values
}

/// Returns the message for an input without a shape.
fn undeclared(input: &Input) -> String {
    format!("input {}: the model does not declare its shape, give it with --input-shape {0}=1x3x64x64", input.name)
}

/// Returns values for the symbols of the declared inputs, and shapes for inputs without one.
///
/// They come from the io.npz beside the model, if there is one and it fits. No inputs are made. The
/// last value is a note that says so.
pub fn symbol_values(
    declared: &[Input],
    file: &ModelFile,
) -> TractResult<(SymbolValues, Vec<InputShape>, Option<String>)> {
    let everything: Vec<&Input> = declared.iter().collect();
    let known = |input: &Input| input.shape.as_ref().is_some_and(|shape| shape.iter().all(|dim| dim.to_i64().is_ok()));
    let (mut symbols, mut shapes, mut note) = (SymbolValues::default(), vec![], None);
    if let Some(path) = file.io.as_ref().filter(|_| !declared.iter().all(known)) {
        let arrays = read_npz(path)?;
        let members = members(declared, &arrays, path);
        match bind(declared, &members) {
            Ok(values) => {
                (symbols, note) = (values, Some(format!("shapes as in {}", path.display())));
                let open = declared.iter().filter(|input| input.shape.is_none());
                let shape = |input: &Input| {
                    let shape = members.get(&input.name)?.0.shape().to_vec();
                    Some(InputShape { name: Some(input.name.clone()), shape })
                };
                shapes = open.filter_map(shape).collect();
            }
            Err(why) => note = Some(format!("{} is left aside: {why:#}", path.display())),
        }
    }
    let given = |input: &Input| shapes.iter().any(|shape| shape.name.as_ref() == Some(&input.name));
    if let Some(input) = declared.iter().find(|input| input.shape.is_none() && !given(input)) {
        return Err(usage!("{}", undeclared(input)));
    }
    all_bound(declared, &everything, &symbols, ", or their shapes with --input-shape")?;
    Ok((symbols, shapes, note))
}

/// The most values of a random input.
const MOST_RANDOM: usize = 1 << 28;

/// SplitMix64. A seed gives the same inputs on every machine and in every version.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns floats within -1..1, or zeros and ones for integers.
    ///
    /// Integers are often indices or lengths.
    fn tensor(&mut self, datum_type: DatumType, shape: &[usize]) -> TractResult<Arc<Tensor>> {
        let len = shape.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
        let len = len.filter(|len| *len <= MOST_RANDOM).with_context(|| {
            format!("input: shape={}, more than the limit of {MOST_RANDOM} random values", times(shape))
        })?;
        let float = datum_type.is_float();
        let mut values: Vec<f64> = vec![];
        values.try_reserve_exact(len).with_context(|| format!("input: shape={}, too large", times(shape)))?;
        values.extend((0..len).map(|_| match float {
            true => (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0,
            false => (self.next() >> 63) as f64,
        }));
        let tensor = Tensor::from_shape(shape, &values)?;
        let tensor = tensor
            .cast_to_dt(datum_type)
            .with_context(|| format!("input: datum_type={datum_type:?}, no random values of this type"))?;
        Ok(tensor.into_owned().into_arc_tensor())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_inputs_repeat_and_stay_in_range() {
        let one = Random(7).tensor(DatumType::F32, &[3, 50]).unwrap();
        assert_eq!(one, Random(7).tensor(DatumType::F32, &[3, 50]).unwrap());
        assert_ne!(one, Random(8).tensor(DatumType::F32, &[3, 50]).unwrap());
        let view = one.try_as_plain_ram().unwrap();
        let values = view.as_slice::<f32>().unwrap();
        assert!(values.iter().all(|v| (-1.0..=1.0).contains(v)));
        assert!(values.iter().any(|v| *v < -0.5) && values.iter().any(|v| *v > 0.5));
    }

    #[test]
    fn random_inputs_exist_for_every_type() {
        for dt in [DatumType::F16, DatumType::F64, DatumType::I64, DatumType::U8, DatumType::Bool] {
            assert_eq!(Random(0).tensor(dt, &[4]).unwrap().datum_type(), dt);
        }
        assert!(Random(0).tensor(DatumType::F32, &[usize::MAX, 2]).is_err());
    }
}
