//! The stored inputs and outputs of a model, and their comparison with results.

use crate::npy;
use anyhow::{Context, Result, ensure};
use ndarray_npy::NpzReader;
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use tract_onnx::prelude::*;

/// The largest accepted difference, relative to the largest expected value of the tensor.
pub const TOLERANCE: f32 = 1e-4;

/// Returns the largest absolute value.
pub fn magnitude(tensor: &Tensor) -> Result<f32> {
    Ok(tensor.cast_to::<f32>()?.to_plain_array_view::<f32>()?.iter().fold(0f32, |max, v| max.max(v.abs())))
}

/// Returns the largest difference relative to `scale`.
pub fn compare(found: &Tensor, expected: &Tensor, scale: f32) -> Result<f32> {
    ensure!(found.shape() == expected.shape(), "shape {:?}, expected {:?}", found.shape(), expected.shape());
    ensure!(scale > 0.0 && scale.is_finite(), "expected values have scale {scale}");
    ensure!(
        found.datum_type() == expected.datum_type(),
        "{:?}, {:?} is expected",
        found.datum_type(),
        expected.datum_type()
    );
    let (found, expected) = (found.cast_to::<f32>()?, expected.cast_to::<f32>()?);
    let expected = expected.to_plain_array_view::<f32>()?;
    // A NaN must win over every number.
    let worst = found
        .to_plain_array_view::<f32>()?
        .iter()
        .zip(expected)
        .map(|(f, e)| (f - e).abs() / scale)
        .fold(0f32, |max, error| if error <= max { max } else { error });
    ensure!(worst <= TOLERANCE, "off by {worst:.1e} of the scale {scale}");
    Ok(worst)
}

/// A model's `io.npz`, with arrays `in__NAME` and `out__NAME`.
pub struct Io(HashMap<String, Tensor>);

impl Io {
    pub fn read(folder: &Path) -> Result<Io> {
        let file = folder.join("io.npz");
        let mut npz = NpzReader::new(File::open(&file).with_context(|| file.display().to_string())?)?;
        let mut tensors = HashMap::new();
        for name in npz.names()? {
            let tensor = npy::read_of_any_type!(npz.by_name(&name)).with_context(|| name.clone())?;
            tensors.insert(name.trim_end_matches(".npy").to_string(), tensor);
        }
        Ok(Io(tensors))
    }

    fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.0.get(name).with_context(|| format!("io.npz has no {name}"))
    }

    pub fn inputs(&self, model: &InferenceModel) -> Result<TVec<TValue>> {
        let names = model.input_outlets()?.iter().map(|input| &model.node(input.node).name);
        names.map(|name| Ok(self.tensor(&format!("in__{name}"))?.clone().into())).collect()
    }

    /// Returns name, value and scale of each output. A sigmoid's scale is 1, even if it saturates
    /// at 0.
    pub fn outputs(&self, model: &InferenceModel) -> Result<Vec<(String, &Tensor, f32)>> {
        let mut outputs = vec![];
        for &outlet in model.output_outlets()? {
            let name = model.outlet_label(outlet).context("unnamed output")?;
            let value = self.tensor(&format!("out__{name}"))?;
            let sigmoid = model.node(outlet.node).op.name() == "Sigmoid";
            let scale = if sigmoid { 1.0 } else { magnitude(value)? };
            outputs.push((name.to_string(), value, scale));
        }
        Ok(outputs)
    }
}
