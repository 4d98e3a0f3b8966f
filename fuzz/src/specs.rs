//! Random specs. Legal ones run on every strategy. Nearly legal ones are refused or agree with the
//! definition.

use super::Outcome;
use super::definition;
use arbitrary::{Arbitrary, Unstructured};
use tract_core::internal::*;
use tract_deconv::Isa;
use tract_deconv::Layer;
use tract_deconv::PackedFilter;
use tract_deconv::Precision;
use tract_deconv::internals::{IntegerSums, with_elements_of};
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, OutputShape, Padding, Problem, Side};
use tract_deconv::{Plan, PlanOptions, Strategy};

/// The maximum number of products and elements of a draw that is run.
const BUDGET: u64 = 4_000;

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Line {
    input: u8,
    kernel: u8,
    stride: u8,
    dilation: u8,
    begin: u8,
    end: u8,
    output_padding: u8,
    output: u8,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Rule {
    Explicit,
    Same,
    Shape,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Draw {
    transposed: bool,
    channels_last: bool,
    long: bool,
    upper: bool,
    bias: bool,
    format: u8,
    rank: u8,
    batch: u8,
    channels: [u8; 3],
    rule: Rule,
    lines: [Line; 4],
    element: u8,
    isa: u8,
    values: u64,
}

/// One case: a spec, the input's shape, the element type and the instruction set.
struct Case {
    spec: DeconvSpec,
    input: TVec<usize>,
    element: DatumType,
    isa: Isa,
    bias: bool,
    values: u64,
}

/// The number of floats at the beginning of [`ELEMENTS`].
const FLOATS: usize = 3;

const ELEMENTS: [DatumType; 8] = [
    DatumType::F32,
    DatumType::F16,
    DatumType::F64,
    DatumType::I8,
    DatumType::U8,
    DatumType::I32,
    DatumType::U16,
    DatumType::I64,
];

impl Draw {
    /// Returns a legal case that is small enough to run.
    fn legal(&self) -> Case {
        let direction = if self.transposed { Direction::Transposed } else { Direction::Forward };
        // Some cases are small, but have sums of floats that are long enough for transformed tiles.
        let deep = (168..208).contains(&self.channels[0]);
        // Some have a single tap and floats, of channels-first data.
        let single = (96..128).contains(&self.channels[0]);
        let rank = match self.rank % 16 {
            0..4 => 1,
            _ if deep => 2,
            4..12 => 2,
            12..15 => 3,
            _ => 4,
        };
        let within = |value: u8, least: usize, most: usize| least + value as usize % (most - least + 1);
        let most = if deep { 5 } else { [17, 7, 4, 2][rank - 1] };
        let lines = &self.lines[..rank];
        let mut input: TVec<usize> = lines.iter().map(|l| within(l.input, 1, most)).collect();
        if self.long && !deep {
            // Past the ends of vectors and tiles.
            input[rank - 1] = within(lines[rank - 1].input, 1, [200, 70, 20, 17][rank - 1]);
        }
        if self.batch >= 224 && !deep {
            // A single position, which has a strategy of its own.
            input.fill(1);
        }
        let kernel: TVec<usize> =
            lines.iter().map(|l| within(l.kernel, 1, if single { 1 } else { most.min(5) })).collect();
        let strides: TVec<usize> = lines
            .iter()
            .map(|l| match l.stride {
                _ if single && self.transposed => 1,
                241.. => 9,
                stride => within(stride, 1, if deep { 2 } else { 4 }),
            })
            .collect();
        let dilations: TVec<usize> = lines.iter().map(|l| within(l.dilation, 1, 3)).collect();
        let output_padding: TVec<usize> = lines
            .iter()
            .map(|l| if self.transposed && l.output_padding < 64 { l.output_padding as usize % 4 } else { 0 })
            .collect();
        let side = if self.upper { Side::End } else { Side::Begin };
        let mut begin: TVec<i64> = lines.iter().map(|l| within(l.begin, 0, 7) as i64 - 2).collect();
        let mut end: TVec<i64> = lines.iter().map(|l| within(l.end, 0, 7) as i64 - 2).collect();
        let reach = |ax: usize| ((kernel[ax] - 1) * dilations[ax] + 1) as i64;
        for ax in 0..rank {
            if self.transposed {
                // At least one position must remain.
                let full = (strides[ax] * (input[ax] - 1) + output_padding[ax]) as i64 + reach(ax);
                begin[ax] = begin[ax].min(full - 1);
                end[ax] = end[ax].min(full - 1 - begin[ax]);
            } else {
                // The kernel must fit at least once.
                end[ax] += (reach(ax) - input[ax] as i64 - begin[ax] - end[ax]).max(0);
            }
        }
        let padding = match (self.rule, self.transposed) {
            (Rule::Same, true) => Padding::same_transposed(&kernel, &strides, &dilations, &output_padding, side),
            (Rule::Same, false) => Padding::SameForward { extra: side },
            (Rule::Shape, true) => Padding::OutputShape {
                shape: OutputShape::Dims(lines.iter().map(|l| within(l.output, 1, 3 * most).to_dim()).collect()),
                extra: side,
            },
            _ => Padding::Explicit { begin, end },
        };
        // About every sixth case has one channel per group, with up to 40 groups, which are more
        // than the lanes of a vector.
        let depthwise = self.channels[0] >= 208;
        let group =
            if depthwise { within(self.channels[0], 2, 40) } else { [1, 1, 2, 3][self.channels[0] as usize % 4] };
        let channels = |value: u8, few: u8, most: usize| match deep {
            true => within(value, 16, 19),
            false => within(value, 1, if value < few { most } else { 40 }),
        };
        let spec = DeconvSpec {
            direction,
            data_format: if self.channels_last && !single { DataFormat::Nxc } else { DataFormat::Ncx },
            filter_format: match (direction, self.format % 4) {
                (Direction::Forward, _) => FilterFormat::GroupedOix,
                (_, 0) => FilterFormat::Iox,
                (_, 1) => FilterFormat::Oix,
                (_, 2) => FilterFormat::Xio,
                _ => FilterFormat::Xoi,
            },
            // The channels, too, may exceed vectors and tiles.
            in_channels: group * if depthwise { 1 } else { channels(self.channels[1], 224, 3) },
            out_channels: group
                * if depthwise { within(self.channels[2], 1, 2) } else { channels(self.channels[2], 160, 5) },
            group,
            kernel,
            strides,
            dilations,
            padding,
            output_padding,
        };
        let available: Vec<Isa> = Isa::ALL.iter().copied().filter(|isa| isa.is_available()).collect();
        Case {
            input: spec.data_format.shape(within(self.batch, 1, 2), spec.in_channels, input),
            spec,
            element: ELEMENTS[self.element as usize % if deep || single { FLOATS } else { ELEMENTS.len() }],
            // The best one is last.
            isa: if single && self.isa >= 128 { Isa::best() } else { available[self.isa as usize % available.len()] },
            bias: self.bias,
            values: self.values,
        }
    }
}

/// Checks that every strategy gives the definition's numbers bit for bit. The operands are small
/// integers, so sums are exact.
///
/// Returns the strategies that accepted the spec.
///
/// # Panics
/// Panics on a find.
pub fn legal(bytes: &[u8]) -> (Outcome, Vec<Strategy>) {
    tract_deconv::internals::fill_new_memory(true);
    let Ok(draw) = Draw::arbitrary(&mut Unstructured::new(bytes)) else { return (Outcome::Skipped, vec![]) };
    let case = draw.legal();
    let refusal =
        |error: TractError| -> ! { panic!("a legal spec is refused: {error:#}: {:?} on {:?}", case.spec, case.input) };
    case.spec.validate().unwrap_or_else(|error| refusal(error));
    let problem = case.spec.problem(&case.input, None).unwrap_or_else(|error| refusal(error));
    if !affordable(&problem) {
        return (Outcome::Accepted, vec![]);
    }
    (Outcome::Ran, agree(&case, &problem, &PlanOptions::default()))
}

fn affordable(problem: &Problem) -> bool {
    let elements = |shape: TVec<usize>| shape.iter().fold(1u64, |elements, dim| elements.saturating_mul(*dim as u64));
    let taps = problem.axes.iter().fold(1u64, |taps, axis| taps.saturating_mul(axis.kernel as u64));
    let weights = taps.saturating_mul((problem.group * problem.group_in * problem.group_out) as u64);
    // The definition visits every pair of a position and a tap.
    let walked = elements(problem.input_shape()).max(elements(problem.output_shape())).saturating_mul(taps);
    // Sums that are long enough for transformed tiles.
    let budget = if problem.group_in.min(problem.group_out) < 16 { BUDGET } else { 8 * BUDGET };
    walked <= 4 * budget && weights <= budget && problem.multiply_adds() <= budget
}

/// Returns integers as elements, wrapped if they don't fit.
///
/// The tensor has only the alignment of its elements, as tests put tensors next to inaccessible
/// pages.
fn tensor(element: DatumType, shape: &[usize], values: &[i64]) -> TractResult<Tensor> {
    fn of<T: Datum + Copy>(shape: &[usize], values: &[i64], from: impl Fn(i64) -> T) -> TractResult<Tensor> {
        let values: Vec<T> = values.iter().map(|value| from(*value)).collect();
        Tensor::from_shape_align(shape, &values, size_of::<T>())
    }
    match element {
        DatumType::F32 => of(shape, values, |v| v as f32),
        DatumType::F16 => of(shape, values, |v| f16::from_f32(v as f32)),
        DatumType::F64 => of(shape, values, |v| v as f64),
        DatumType::I8 => of(shape, values, |v| v as i8),
        DatumType::U8 => of(shape, values, |v| v as u8),
        DatumType::I32 => of(shape, values, |v| v as i32),
        DatumType::U16 => of(shape, values, |v| v as u16),
        _ => of(shape, values, |v| v),
    }
}

/// Runs a case on each strategy that accepts it, and returns those strategies.
fn agree(case: &Case, problem: &Problem, options: &PlanOptions) -> Vec<Strategy> {
    let (spec, show) = (&case.spec, || format!("{:?} on {:?} {:?} {}", case.spec, case.input, case.element, case.isa));
    let mut random = super::Random(case.values);
    let mut draw = |len: usize| -> Vec<i64> {
        let unsigned = matches!(case.element, DatumType::U8 | DatumType::U16);
        (0..len).map(|_| if unsigned { random.below(4) as i64 } else { random.below(7) as i64 - 3 }).collect()
    };
    let filter_shape = spec.filter_shape();
    let x = draw(case.input.iter().product());
    let w = draw(filter_shape.iter().product());
    let bias = case.bias.then(|| draw(spec.out_channels));
    let Some((shape, expected)) = definition::output(spec, problem, &x, &w, bias.as_deref()) else {
        panic!("accepted against the rules: {}", show());
    };
    let typed = |shape: &[usize], values: &[i64]| tensor(case.element, shape, values);
    let run = || -> TractResult<Vec<Strategy>> {
        let (x, w) = (typed(&case.input, &x)?, typed(&filter_shape, &w)?.into_arc_tensor());
        let bias = bias.as_ref().map(|bias| typed(&[bias.len()], bias)).transpose()?;
        let expected = typed(&shape, &expected)?;
        let mut ran = vec![];
        for strategy in Strategy::ALL.iter().copied() {
            let options = options.clone().with_strategy(strategy).with_isa(case.isa);
            let Ok(plan) = Plan::new(spec, &case.input, None, case.element, &options) else { continue };
            let packed = PackedFilter::pack(spec, &plan.filter_layout(), &w)?;
            let y = Layer::new(plan.clone()).run(&x, &packed, bias.as_ref())?;
            let agrees = if plan.mixes_results() { is_near(&y, &expected)? } else { y == expected };
            if !agrees {
                bail!("{plan} gives {:?}, not {:?}", y.dump(true), expected.dump(true));
            }
            // The operands are small integers, which no precision rounds.
            for precision in [Precision::Bf16, Precision::F16] {
                let plan =
                    Plan::new(spec, &case.input, None, case.element, &options.clone().with_precision(precision))?;
                if plan.precision() == Precision::Exact {
                    continue;
                }
                let packed = PackedFilter::pack(spec, &plan.filter_layout(), &w)?;
                let y = Layer::new(plan.clone()).run(&x, &packed, bias.as_ref())?;
                ensure!(y == expected, "{plan} gives {:?}, not {:?}", y.dump(true), expected.dump(true));
            }
            ran.push(strategy);
        }
        ensure!(!ran.is_empty(), "not even the reference takes it");
        Ok(ran)
    };
    let sums = || agree_on_sums(case, problem, options, &x, &w);
    run().and_then(|ran| sums().map(|()| ran)).unwrap_or_else(|error| panic!("{error:#}: {}", show()))
}

/// Sums 8-bit integers with a zero point by each strategy that takes elements of two or four integers.
fn agree_on_sums(case: &Case, problem: &Problem, options: &PlanOptions, x: &[i64], w: &[i64]) -> TractResult<()> {
    if !matches!(case.element, DatumType::I8 | DatumType::U8) {
        return Ok(());
    }
    let spec = &case.spec;
    let mut random = super::Random(case.values ^ 1);
    // Weights of 9 bits need pairs.
    let wide = random.below(4) == 0;
    let w: Vec<i64> = w.iter().map(|w| if wide { w * 50 } else { w * 9 }).collect();
    let zero_point = match (case.element, random.below(2)) {
        (DatumType::U8, 0) => 0,
        (DatumType::U8, _) => random.below(256) as i32,
        (_, 0) => -128,
        _ => random.below(256) as i32 - 128,
    };
    let less: Vec<i64> = x.iter().map(|x| x - i64::from(zero_point)).collect();
    let Some((shape, expected)) = definition::output(spec, problem, &less, &w, None) else {
        bail!("accepted against the rules");
    };
    let (x, expected) = (tensor(case.element, &case.input, x)?, tensor(DatumType::I32, &shape, &expected)?);
    let weights: Vec<i16> = w.iter().map(|w| *w as i16).collect();
    let w = Tensor::from_shape_align(&spec.filter_shape(), &weights, size_of::<i16>())?;
    for (integers, strategy) in [2, 4].into_iter().flat_map(|of| Strategy::ALL.iter().map(move |s| (of, *s))) {
        let options = options.clone().with_strategy(strategy).with_isa(case.isa);
        let Some(options) = with_elements_of(integers, options) else { continue };
        let y = match IntegerSums::new(spec, &w, &options)?.run(&x, zero_point, None) {
            Err(error) if error.to_string().starts_with("strategy: none is left") => continue,
            Err(error) if options.memory_limit.is_some() && error.to_string().starts_with("working memory") => continue,
            y => y?,
        };
        if y != expected {
            bail!(
                "{strategy} on {integers} integers less {zero_point} gives {:?}, not {:?}",
                y.dump(true),
                expected.dump(true)
            );
        }
    }
    Ok(())
}

/// Compares results of tiles whose factors are rounded with exact ones.
fn is_near(got: &Tensor, expected: &Tensor) -> TractResult<bool> {
    let step = if expected.datum_type() == DatumType::F16 { 1.0 / 1024.0 } else { 0.0 };
    let floats = |tensor: &Tensor| -> TractResult<Vec<f64>> {
        Ok(tensor.cast_to::<f64>()?.try_as_plain_ram()?.as_slice::<f64>()?.to_vec())
    };
    let mut all = floats(got)?.into_iter().zip(floats(expected)?);
    let near = |(got, expected): (f64, f64)| (got - expected).abs() <= 1e-3 + step * expected.abs();
    Ok((got.datum_type(), got.shape()) == (expected.datum_type(), expected.shape()) && all.all(near))
}

/// Values on which arithmetic on sizes may fail.
const WILD: [i64; 16] = [
    0,
    -1,
    1,
    7,
    255,
    1024,
    1025,
    65536,
    (1 << 31) - 2,
    (1 << 31) - 1,
    1 << 31,
    1 << 40,
    (1 << 40) + 1,
    1 << 62,
    i64::MAX,
    i64::MIN,
];

/// Checks that a legal spec with a few extreme values is refused, or planned without overflow. If
/// it is small enough, its results must agree with the definition.
///
/// # Panics
/// Panics on a find.
pub fn nearly_legal(bytes: &[u8]) -> Outcome {
    tract_deconv::internals::fill_new_memory(true);
    let mut rest = Unstructured::new(bytes);
    let Ok(draw) = Draw::arbitrary(&mut rest) else { return Outcome::Skipped };
    let mut case = draw.legal();
    for _ in 0..1 + rest.arbitrary::<u8>().unwrap_or(0) % 3 {
        let (field, at, value): (u8, u8, u8) = rest.arbitrary().unwrap_or((0, 0, 0));
        // Half of the values are small, so that enough cases can be compared.
        let value = if value < 128 { value as i64 % 8 } else { WILD[value as usize % WILD.len()] };
        wild(&mut case, field, at as usize, value);
    }
    let spec = &case.spec;
    // The other methods rely on it.
    if spec.validate().is_err() {
        return Outcome::Refused;
    }
    if case.input.len() != spec.rank() + 2 {
        assert!(spec.problem(&case.input, None).is_err() && spec.output_shape::<usize>(&case.input).is_err());
        return Outcome::Refused;
    }
    let open: TVec<TDim> = case.input.iter().map(|dim| dim.to_dim()).collect();
    let (sizes, dims) = (spec.output_shape::<usize>(&case.input), spec.output_shape::<TDim>(&open));
    let problem = spec.problem(&case.input, None);
    let symbols = SymbolScope::default();
    let symbolic: TVec<TDim> = (0..open.len())
        .map(|axis| {
            let channels = axis == spec.data_format.c_axis(open.len());
            if channels { spec.in_channels.to_dim() } else { symbols.new_with_prefix("x").to_dim() }
        })
        .collect();
    let _ = spec.output_shape::<TDim>(&symbolic);
    Plan::shape_free_layout(spec, &symbolic, case.element, &PlanOptions::default());
    let Ok(problem) = problem else {
        assert!(sizes.is_err() && dims.is_err(), "a shape without a problem: {spec:?} on {:?}", case.input);
        return Outcome::Refused;
    };
    let shape = problem.output_shape();
    assert_eq!(sizes.ok().as_ref(), Some(&shape), "{spec:?} on {:?}", case.input);
    assert_eq!(dims.ok(), Some(shape.iter().map(|dim| dim.to_dim()).collect()), "{spec:?} on {:?}", case.input);
    let options = PlanOptions::default().with_memory_limit(1 << 20);
    let planned = Plan::new(spec, &case.input, None, case.element, &options);
    // Integers of other types are summed in copies of eight bytes per element, which count as
    // working memory.
    let is_copied = !case.element.is_float() && case.element != DatumType::I64;
    let bytes = |shape: &[usize]| shape.iter().fold(8usize, |bytes, dim| bytes.saturating_mul(*dim));
    let copied = bytes(&case.input).saturating_add(bytes(&shape)).saturating_add(bytes(&[spec.out_channels]));
    let copies = if is_copied { copied } else { 0 };
    let fits = problem.output_bytes(case.element) <= 1 << 20 && copies <= 1 << 20;
    assert_eq!(planned.is_ok(), fits, "{:?}: {spec:?} on {:?}", planned.err(), case.input);
    if !fits || case.input.contains(&0) || !affordable(&problem) {
        return Outcome::Accepted;
    }
    agree(&case, &problem, &options);
    Outcome::Ran
}

/// Sets one value of a list that is not empty.
fn set<T>(list: &mut [T], at: usize, value: T) {
    let len = list.len().max(1);
    if let Some(slot) = list.get_mut(at % len) {
        *slot = value;
    }
}

/// Sets a field of the case to an extreme value.
fn wild(case: &mut Case, field: u8, at: usize, value: i64) {
    let spec = &mut case.spec;
    let size = usize::try_from(value).unwrap_or(usize::MAX);
    match field % 16 {
        0 => set(&mut spec.kernel, at, size),
        1 => set(&mut spec.strides, at, size),
        2 => set(&mut spec.dilations, at, size),
        3 => set(&mut spec.output_padding, at, size),
        4 => spec.group = size,
        5 => spec.in_channels = size,
        6 => spec.out_channels = size,
        7 | 8 => match &mut spec.padding {
            Padding::Explicit { begin, end } => {
                let list = if field.is_multiple_of(2) { begin } else { end };
                set(list, at, value);
            }
            Padding::OutputShape { shape: OutputShape::Dims(dims), .. } => {
                set(dims, at, value.to_dim());
            }
            _ => spec.padding = Padding::Explicit { begin: tvec!(value; at % 5), end: tvec!(value; at % 5) },
        },
        9 => {
            // A crop that cancels the extent of a dilation.
            let ax = at % spec.rank().max(1);
            set(&mut spec.dilations, ax, size);
            if let (Padding::Explicit { begin, end }, Some(kernel)) = (&mut spec.padding, spec.kernel.get(ax)) {
                let reach = (*kernel as i64).saturating_sub(1).saturating_mul(value);
                set(begin, ax, reach / 2);
                set(end, ax, reach - reach / 2);
            }
        }
        10 => set(&mut case.input, at, size),
        11 => {
            case.input.pop();
        }
        12 => case.input.push(size),
        13 => {
            let lists = [&mut spec.kernel, &mut spec.strides, &mut spec.dilations, &mut spec.output_padding];
            let picked = lists.into_iter().nth(at % 4);
            picked.into_iter().for_each(|list| list.truncate(at / 4 % 4));
        }
        14 => {
            // Spec and input agree on a number of channels.
            spec.in_channels = size;
            let c = spec.data_format.c_axis(case.input.len().max(2));
            set(&mut case.input, c, size);
        }
        _ => {
            set(&mut case.input, spec.data_format.x_axis() + at % spec.rank().max(1), size);
        }
    }
}
