//! Random specs through every strategy on every available instruction set, against the definition.
//!
//! Half of the specs have steps that are applied when results are stored. `PROPTEST_CASES` sets the
//! number of specs per property.

mod common;

use common::MATRIX_PRODUCTS;
use common::oracle::{Answer, Expected, FromTensor, answer, tolerance};
use common::random::Random;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;
use tract_core::internal::tract_itertools::{Itertools, iproduct};
use tract_core::internal::*;
use tract_core::prelude::multithread::{Executor, multithread_tract_scope};
use tract_deconv::Isa;
use tract_deconv::Layer;
use tract_deconv::Machine;
use tract_deconv::PackedFilter;
use tract_deconv::Precision;
use tract_deconv::internals::{IntegerSums, with_elements_of};
use tract_deconv::knobs::TRACT_DECONV_SHARE_FROM;
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, OutputShape, Padding, Side};
use tract_deconv::{Activation, Step};
use tract_deconv::{FilterLayout, Plan, PlanOptions, Strategy as Algorithm};

/// The sizes of a property's specs.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// The maximum number of products of one spec. Larger draws are cut down to it.
    budget: usize,
    /// Half of the draws have axes of at least this many positions.
    long: usize,
    /// The divisor of `PROPTEST_CASES` for this property.
    one_in: u32,
}

const SMALL: Scale = Scale { budget: 60_000, long: 7, one_in: 1 };

/// Problems of several cache blocks, which real threads share.
const LARGE: Scale = Scale { budget: 6_000_000, long: 40, one_in: 16 };

/// Sizes around tile boundaries. Registers hold 4, 8 or 16 lanes, and tiles a few registers.
const TILES: [usize; 20] = [1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 17, 19, 31, 32, 33, 35, 48, 51];

/// The precisions that round operands.
const ROUNDED: [Precision; 2] = [Precision::Bf16, Precision::F16];

#[derive(Clone, Debug)]
struct Case {
    spec: DeconvSpec,
    input: TVec<usize>,
    requested: Option<Vec<i64>>,
    dt: DatumType,
    bias: bool,
    tail: bool,
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    input: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    begin: i64,
    end: i64,
    output_padding: usize,
    output: usize,
}

fn line(direction: Direction, scale: Scale) -> impl Strategy<Value = Line> {
    let long = scale.long..3 * scale.long;
    let input =
        prop_oneof![3 => 1usize..8, 1 => prop::sample::select(&TILES[..]), if scale.long > 7 { 4 } else { 1 } => long];
    let kernel = prop_oneof![6 => 1usize..=5, 1 => 6usize..=17];
    let stride = prop_oneof![8 => 1usize..=4, 1 => 5usize..=9];
    // Up to crops beyond all that the kernel reaches.
    let pads = prop_oneof![6 => 0i64..=3, 4 => -3i64..=12, 1 => 13i64..=40];
    let line = (input, kernel, stride.clone(), 1usize..=4, (pads.clone(), pads), 0usize..=9, 1usize..60).prop_map(
        move |(input, kernel, stride, dilation, (begin, end), output_padding, output)| {
            let output_padding = if direction == Direction::Transposed { output_padding % (stride + 3) } else { 0 };
            Line { input, kernel, stride, dilation, begin, end, output_padding, output }.legal(direction)
        },
    );
    // The planner merges or drops axes of one tap.
    let pointwise = (prop_oneof![Just(1usize), 2usize..8], stride).prop_map(move |(input, stride)| {
        let stride = if input == 1 { stride } else { 1 };
        Line { input, kernel: 1, stride, dilation: 1, begin: 0, end: 0, output_padding: 0, output: input }
    });
    prop_oneof![8 => line, 1 => pointwise]
}

impl Line {
    /// Returns the nearest axis whose output is not empty.
    fn legal(mut self, direction: Direction) -> Line {
        let eff = ((self.kernel - 1) * self.dilation + 1) as i64;
        match direction {
            Direction::Transposed => {
                let full = (self.stride * (self.input - 1)) as i64 + eff + self.output_padding as i64;
                self.begin = self.begin.min(full - 1);
                self.end = self.end.min(full - 1 - self.begin);
                self.output = self.output.min(full as usize + 5);
            }
            Direction::Forward => {
                let missing = eff - (self.input as i64 + self.begin + self.end);
                self.end += missing.max(0);
            }
        }
        self
    }

    /// Returns an axis one step closer to the smallest one.
    fn smaller(mut self) -> Line {
        let cut = |value: usize, least: usize| value - (value - least).div_ceil(4);
        (self.input, self.kernel) = (cut(self.input, 1), cut(self.kernel, 1));
        (self.stride, self.dilation) = (cut(self.stride, 1), cut(self.dilation, 1));
        self.output_padding = cut(self.output_padding, 0);
        (self.begin, self.end) = (self.begin - self.begin.signum(), self.end - self.end.signum());
        self
    }

    /// Returns a bound of this axis's output, whatever the padding rule.
    fn largest_output(&self, direction: Direction) -> usize {
        let eff = (self.kernel - 1) * self.dilation + 1;
        let reach = match direction {
            Direction::Transposed => self.stride * (self.input - 1) + eff + self.output_padding,
            Direction::Forward => self.input.max(eff),
        };
        reach + self.begin.min(0).unsigned_abs() as usize + self.end.max(0).unsigned_abs() as usize
    }
}

/// Draws `(group, channels in, channels out)`, with channels per group.
fn channels() -> impl Strategy<Value = (usize, usize, usize)> {
    let tile = || prop::sample::select(&TILES[..]);
    prop_oneof![
        4 => (Just(1), tile(), tile()),
        2 => (2usize..=5, 1usize..=9, tile()),
        2 => (tile(), Just(1), Just(1)),
        2 => (tile(), 1usize..=5, 2usize..=5),
    ]
}

fn padding(direction: Direction, lines: &[Line], kind: usize) -> (Padding, Option<Vec<i64>>) {
    let extra = if kind.is_multiple_of(2) { Side::Begin } else { Side::End };
    let outputs: Vec<i64> = lines.iter().map(|l| l.output as i64).collect();
    match (kind / 2, direction) {
        (0, Direction::Transposed) => {
            let dims = outputs.iter().map(|o| o.to_dim()).collect();
            (Padding::OutputShape { shape: OutputShape::Dims(dims), extra }, None)
        }
        (1, Direction::Transposed) => {
            let scope = SymbolScope::default();
            let dims = lines.iter().map(|_| scope.new_with_prefix("out").to_dim()).collect();
            (Padding::OutputShape { shape: OutputShape::Input(dims), extra }, Some(outputs))
        }
        (0, Direction::Forward) => (Padding::SameForward { extra }, None),
        _ => {
            let (begin, end) = lines.iter().map(|l| (l.begin, l.end)).unzip();
            (Padding::Explicit { begin, end }, None)
        }
    }
}

/// Returns the products, or elements to write, per batch and pair of channels.
fn cost(direction: Direction, lines: &[Line]) -> usize {
    let outputs = lines.iter().map(|l| l.largest_output(direction));
    let taps = lines.iter().map(|l| l.kernel.div_ceil(if l.dilation > 1 { 1 } else { l.stride }));
    outputs.chain(taps).fold(1, usize::saturating_mul)
}

fn case(direction: Direction, types: &'static [DatumType], scale: Scale) -> impl Strategy<Value = Case> {
    let lines = prop_oneof![4 => Just(1usize), 4 => Just(2), 2 => Just(3), 1 => Just(4)]
        .prop_flat_map(move |rank| prop::collection::vec(line(direction, scale), rank));
    let layouts = (
        prop::sample::select(&[DataFormat::Ncx, DataFormat::Nxc][..]),
        prop::sample::select(
            &[FilterFormat::Iox, FilterFormat::Oix, FilterFormat::Xio, FilterFormat::Xoi, FilterFormat::GroupedOix][..],
        ),
    );
    let batch = prop_oneof![1 => Just(0usize), 12 => Just(1), 4 => 2usize..=3];
    let rest = (0usize..10, prop::sample::select(types), any::<[bool; 2]>(), any::<u64>(), prop::bool::weighted(0.08));
    (lines, channels(), layouts, batch, rest).prop_map(
        move |(mut lines, (mut group, mut ci, mut co), (data_format, filter_format), mut batch, rest)| {
            let (kind, dt, [bias, tail], seed, one_position) = rest;
            if one_position {
                lines.iter_mut().for_each(|line| *line = Line { input: 1, ..*line }.legal(direction));
            }
            while cost(direction, &lines) > scale.budget / (batch * group * ci * co).max(1) {
                let most = [batch, group, ci, co].into_iter().max().unwrap_or(1);
                let axis = lines.iter_mut().max_by_key(|l| l.largest_output(direction)).expect("one axis at least");
                if axis.largest_output(direction) > most || most == 1 {
                    *axis = axis.smaller().legal(direction);
                } else {
                    let channels = [&mut batch, &mut group, &mut ci, &mut co].into_iter().max_by_key(|c| **c);
                    *channels.expect("four of them") -= most.div_ceil(4);
                }
            }
            let (padding, requested) = padding(direction, &lines, kind);
            let spec = DeconvSpec {
                direction,
                data_format,
                filter_format,
                in_channels: group * ci,
                out_channels: group * co,
                group,
                kernel: lines.iter().map(|l| l.kernel).collect(),
                strides: lines.iter().map(|l| l.stride).collect(),
                dilations: lines.iter().map(|l| l.dilation).collect(),
                output_padding: lines.iter().map(|l| l.output_padding).collect(),
                padding,
            };
            let input = data_format.shape(batch, group * ci, lines.iter().map(|l| l.input));
            Case { spec, input, requested, dt, bias, tail: tail && dt.is_float(), seed }
        },
    )
}

/// Executors of one thread and of three. Work is partitioned differently for several threads, even
/// if it is small. A WebAssembly module has one thread.
fn executors() -> Vec<(usize, Executor)> {
    if cfg!(target_family = "wasm") {
        return vec![(1, Executor::SingleThread)];
    }
    static POOL: std::sync::OnceLock<Executor> = std::sync::OnceLock::new();
    vec![(1, Executor::SingleThread), (3, POOL.get_or_init(|| Executor::multithread(3)).clone())]
}

/// The runs and refusals of each (strategy, instruction set).
type Counts = Mutex<BTreeMap<(String, Isa), (usize, usize)>>;

fn fail(what: impl std::fmt::Display, error: impl std::fmt::Display) -> TestCaseError {
    TestCaseError::fail(format!("{what}: {error:#}"))
}

/// Draws one to four steps and the tensors that they add.
fn steps(case: &Case, output: &[usize], random: &mut Random) -> (Vec<Step>, Vec<Tensor>) {
    let compute = if case.dt == DatumType::F64 { DatumType::F64 } else { DatumType::F32 };
    let steps = 1 + random.below(4);
    let mut residuals = vec![];
    // Kernels clamp results to bounds if these are the first steps.
    let clamps = random.below(2) == 0;
    let steps = (0..steps).map(|at| {
        let values = |random: &mut Random| Arc::new(random.tensor(compute, &[case.spec.out_channels]));
        match if clamps && at < 2 { 6 * random.below(2) } else { random.below(7) } {
            0 => Step::Activation(Activation::Max(-0.25)),
            6 => Step::Activation(Activation::Min(0.75)),
            5 => Step::Activation(Activation::Gate { scale: 0.25, shift: 0.5, low: 0.0, high: 1.0 }),
            1 => Step::Activation(Activation::LeakyRelu(0.125)),
            2 => Step::PRelu(values(random)),
            3 => Step::Affine { factor: values(random), term: values(random) },
            _ => {
                residuals.push(random.tensor(case.dt, output));
                Step::Add
            }
        }
    });
    (steps.collect(), residuals)
}

/// Applies the steps to the definition's result. No step increases an error by more than its
/// magnitude tells.
fn with_steps(case: &Case, mut answer: Answer<f64>, steps: &[Step], residuals: &[Tensor]) -> Answer<f64> {
    let c_axis = case.spec.data_format.c_axis(answer.y.ndim());
    let values = |tensor: &Tensor| -> Vec<f64> {
        tensor.cast_to::<f64>().unwrap().try_as_plain_ram().unwrap().as_slice::<f64>().unwrap().to_vec()
    };
    let mut residuals = residuals.iter();
    for step in steps {
        let operands = match step {
            Step::Activation(_) => [vec![], vec![]],
            Step::PRelu(slopes) => [values(slopes), vec![]],
            Step::Affine { factor, term } => [values(factor), values(term)],
            Step::Add => [values(residuals.next().expect("one for each")), vec![]],
            other => panic!("{other:?}: the definition lacks this step"),
        };
        for (at, ((place, y), magnitude)) in answer.y.indexed_iter_mut().zip(answer.magnitude.iter_mut()).enumerate() {
            let channel = place[c_axis];
            match step {
                Step::Activation(Activation::Max(low)) => *y = y.max(*low as f64),
                Step::Activation(Activation::Min(high)) => *y = y.min(*high as f64),
                // The slope is less than 3/2, and is 1 beyond 2.
                Step::Activation(Activation::Gate { .. }) => {
                    (*y, *magnitude) = (*y * (*y * 0.25 + 0.5).clamp(0.0, 1.0), *magnitude * 1.5);
                }
                Step::Activation(_) => *y = if *y < 0.0 { *y * 0.125 } else { *y },
                Step::PRelu(_) => *y = if *y < 0.0 { *y * operands[0][channel] } else { *y },
                Step::Affine { .. } => {
                    let (factor, term) = (operands[0][channel], operands[1][channel]);
                    (*y, *magnitude) = (*y * factor + term, *magnitude * factor.abs() + term.abs());
                }
                Step::Add => (*y, *magnitude) = (*y + operands[0][at], *magnitude + operands[0][at].abs()),
                other => panic!("{other:?}: the definition lacks this step"),
            }
        }
        answer.terms += 1;
    }
    answer
}

/// The bytes of a tensor.
fn bits(tensor: &Tensor) -> Vec<u8> {
    tensor.try_as_plain_ram().expect("an output is plain").as_bytes().to_vec()
}

/// Splits a tensor's channels into a few tensors.
fn parts_of(x: &Tensor, random: &mut Random) -> TractResult<Vec<Tensor>> {
    let channels = x.shape()[1];
    let mut cuts: Vec<usize> = (0..1 + random.below(3)).map(|_| random.below(channels + 1)).collect();
    cuts.extend([0, channels]);
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|cut| x.slice(1, cut[0], cut[1])).collect()
}

fn check(case: &Case, counts: &Counts) -> Result<(), TestCaseError> {
    // Otherwise a run may find the right result of the previous one in a block just freed.
    tract_deconv::internals::fill_new_memory(true);
    let Case { spec, input, requested, dt, .. } = case;
    let requested = requested.as_deref();
    spec.validate().map_err(|e| fail("validate", e))?;
    let mut random = Random(case.seed);
    let x = random.tensor(*dt, input);
    let w = Arc::new(random.tensor(*dt, &spec.filter_shape()));
    let bias = case.bias.then(|| random.tensor(*dt, &[spec.out_channels]));
    let (expected, steps, residuals) = if case.tail {
        let answer = answer(spec, &x, &w, bias.as_ref(), requested);
        let (steps, residuals) = steps(case, answer.y.shape(), &mut random);
        (Expected::floats(*dt, with_steps(case, answer, &steps, &residuals)), steps, residuals)
    } else {
        (Expected::new(spec, &x, &w, bias.as_ref(), requested), vec![], vec![])
    };
    let expected = match dt.is_float() {
        true => expected.of_operands(&x, &w, spec.group_in() * spec.kernel.iter().product::<usize>()),
        false => expected,
    };
    let residuals: Vec<&Tensor> = residuals.iter().collect();
    let parts = match spec.data_format {
        DataFormat::Ncx => parts_of(&x, &mut random).map_err(|e| fail("parts", e))?,
        DataFormat::Nxc => vec![],
    };
    let parts: Vec<&Tensor> = parts.iter().collect();

    // The kind of tiles, and the axis that they are on.
    let tiles_of =
        |plan: &Plan| plan.to_string().split(", ").find(|part| part.contains("tiles of")).map(str::to_string);
    let run = |what: &str, options: &PlanOptions| -> Result<Option<Plan>, TestCaseError> {
        let Ok(plan) = Plan::new(spec, input, requested, *dt, options) else { return Ok(None) };
        let packed = PackedFilter::pack(spec, &plan.filter_layout(), &w).map_err(|e| fail(what, e))?;
        for (threads, executor) in executors() {
            let layer = Layer::new(plan.clone());
            let run = || match options.in_parts {
                false => layer.run_with_epilogue(&x, &packed, bias.as_ref(), &steps, &residuals),
                true => layer.run_on_parts(&parts, &packed, bias.as_ref(), &steps, &residuals),
            };
            let y = multithread_tract_scope(executor.clone(), run).map_err(|e| fail(what, e))?;
            let checked = match plan.mixes_results() {
                true => expected.check_by_largest(&y),
                false => expected.check_in(plan.precision(), &y),
            };
            checked.map_err(|e| fail(format!("{what}, {plan}, {threads} threads, then {steps:?}"), e))?;
            let in_run = options.clone().with_transformed_bytes(0);
            if options.layout.is_none()
                && matches!(plan.filter_layout(), FilterLayout::Tiles { .. })
                && let Ok(other) = Plan::new(spec, input, requested, *dt, &in_run)
                && tiles_of(&other) == tiles_of(&plan)
            {
                let filter = PackedFilter::pack(spec, &other.filter_layout(), &w).map_err(|e| fail(what, e))?;
                prop_assert!(filter.bytes() < packed.bytes() && *filter.layout() != *packed.layout());
                let layer = Layer::new(other);
                let run = || layer.run_with_epilogue(&x, &filter, bias.as_ref(), &steps, &residuals);
                let in_run = multithread_tract_scope(executor, run).map_err(|e| fail(what, e))?;
                prop_assert!(
                    bits(&in_run) == bits(&y),
                    "{}, {}: other bits than with weights transformed in a run",
                    what,
                    plan
                );
            }
        }
        Ok(Some(plan))
    };
    // The same input with all dimensions but the channels unknown.
    let scope = SymbolScope::default();
    let c_axis = spec.data_format.c_axis(input.len());
    let open: TVec<TDim> = (0..input.len())
        .map(|ax| if ax == c_axis { input[ax].to_dim() } else { scope.new_with_prefix("d").to_dim() })
        .collect();
    for isa in Isa::ALL.iter().copied().filter(|isa| isa.is_available()) {
        // The reference has no kernels, so it ignores the instruction set. The other kernels of the
        // set with tile registers are those of 512-bit vectors.
        let skipped = |strategy| match strategy {
            Algorithm::Reference => isa != Isa::Portable,
            Algorithm::MatrixPixels | Algorithm::MatrixPlanes => false,
            _ => isa == Isa::Amx,
        };
        for strategy in Algorithm::ALL.iter().copied().filter(|strategy| !skipped(*strategy)) {
            let what = format!("{strategy} on {isa}");
            let options = PlanOptions::default().with_strategy(strategy).with_isa(isa);
            let plan = run(&what, &options)?;
            if let Some(plan) = &plan {
                prop_assert_eq!((plan.strategy(), plan.isa()), (strategy, isa), "what was forced is what runs");
                let mut others = options.clone();
                let mut variant = plan.variant();
                while !variant.is_empty() {
                    others.left_out.push(variant);
                    let other = run(&format!("another variant of {what}"), &others)?;
                    variant = other.map_or("", |plan| plan.variant());
                }
            }
            if parts.len() > 1 {
                let in_parts = run(&format!("{what} of parts"), &options.clone().with_in_parts(true))?;
                prop_assert_eq!(in_parts.is_some(), plan.is_some(), "{}: parts don't matter", what);
            }
            prop_assert!(plan.is_some() || strategy != Algorithm::Reference, "the reference never declines");
            let count = |name: String, ran: bool| {
                let mut counts = counts.lock().expect("no other thread panicked");
                let (of_runs, declined) = counts.entry((name, isa)).or_default();
                *(if ran { of_runs } else { declined }) += 1;
            };
            count(strategy.name().into(), plan.is_some());
            for precision in ROUNDED {
                let options = options.clone().with_precision(precision);
                let Ok(rounded) = Plan::new(spec, input, requested, *dt, &options) else {
                    prop_assert!(plan.is_none(), "{}: {:?} has a plan too", what, precision);
                    continue;
                };
                let rounds = rounded.precision() != Precision::Exact;
                prop_assert_eq!(rounded.exact_because().is_none(), rounds, "{}", rounded);
                if rounds {
                    prop_assert_eq!(rounded.precision(), precision);
                    run(&format!("{what} in {}", precision.name()), &options)?;
                    count(format!("{strategy} in {}", precision.name()), true);
                } else if let Some(plan) = &plan {
                    // The same arithmetic as without the option.
                    prop_assert_eq!(rounded.to_string(), plan.to_string());
                }
            }
        }
        for precision in Precision::ALL.iter().copied() {
            let any = PlanOptions::default().with_isa(isa).with_precision(precision);
            let free = Plan::shape_free_layout(spec, &open, *dt, &any);
            let plan = run("shape-free layout", &any.clone().with_layout(free.clone()))?;
            if !input.contains(&0) {
                prop_assert_eq!(
                    plan.map(|p| p.filter_layout()),
                    Some(free.clone()),
                    "a plan exists for every shape that is not empty"
                );
                // Strategies may decline what exceeds a cache, and others then read this layout.
                let x_axis = spec.data_format.x_axis();
                for (axes, by) in [(0..1, 1000), (x_axis..x_axis + spec.rank(), 20)] {
                    let mut larger = input.clone();
                    larger[axes].iter_mut().for_each(|dim| *dim *= by);
                    // Sizes that are requested, or above the memory limit, may not go with larger inputs.
                    if Plan::new(spec, &larger, requested, *dt, &any).is_err() {
                        continue;
                    }
                    let plan = Plan::new(spec, &larger, requested, *dt, &any.clone().with_layout(free.clone()));
                    prop_assert!(plan.is_ok(), "{:?} with the layout of open sizes: {}", larger, plan.unwrap_err());
                }
            }
        }
    }
    for precision in ROUNDED {
        run("planner's choice", &PlanOptions::default().with_precision(precision))?;
    }
    let Some(chosen) = run("planner's choice", &PlanOptions::default())? else {
        return Err(TestCaseError::fail("a plan exists for every problem"));
    };
    let output = chosen.problem().output_bytes(*dt);
    for limit in [0, 1, output, output + 1] {
        let options = PlanOptions::default().with_memory_limit(limit);
        let plan = match Plan::new(spec, input, requested, *dt, &options) {
            Ok(plan) => plan,
            Err(error) => {
                let error = error.to_string();
                let expected = match output > limit {
                    true => format!("its {output} bytes are more than the limit of {limit}"),
                    false => "working memory: bytes=".to_string(),
                };
                prop_assert!(error.contains(&expected) && !error.contains('\n'), "limit of {}: {}", limit, error);
                prop_assert!(output > limit || !dt.is_float(), "limit of {}: {}", limit, error);
                continue;
            }
        };
        prop_assert!(output.max(plan.working_bytes()) <= limit, "limit of {}: {}", limit, plan);
        run("limited", &options)?;
    }
    Ok(())
}

/// Checks the integer sums of 8-bit data, with and without a zero point, and of weights that fit 8
/// bits or not, in elements of two and of four integers.
fn check_sums(case: &Case, counts: &Counts) -> Result<(), TestCaseError> {
    tract_deconv::internals::fill_new_memory(true);
    let Case { spec, input, requested, dt, .. } = case;
    let requested = requested.as_deref();
    let mut random = Random(case.seed);
    let x = random.tensor(*dt, input);
    let fits = random.below(3) > 0;
    let w = match fits {
        true => random.tensor(DatumType::I8, &spec.filter_shape()).cast_to::<i16>().map(|w| w.into_owned()),
        false => wide_weights(&mut random, &spec.filter_shape()),
    };
    let w = w.map_err(|e| fail("weights", e))?;
    let zero_point = match (random.below(3), dt.is_signed()) {
        (0, false) => 0,
        (0, true) => -128,
        (_, false) => random.below(256) as i32,
        (_, true) => random.below(256) as i32 - 128,
    };
    let less = |tensor: &Tensor, less: i32| -> TractResult<Tensor> {
        let mut wide = tensor.cast_to::<i32>()?.into_owned();
        wide.try_as_plain_ram_mut()?.as_slice_mut::<i32>()?.iter_mut().for_each(|value| *value -= less);
        Ok(wide)
    };
    let (x_less, w_wide) =
        (less(&x, zero_point).map_err(|e| fail("data", e))?, less(&w, 0).map_err(|e| fail("weights", e))?);
    let expected = Expected::new(spec, &x_less, &w_wide, None, requested);
    let run = |what: &str, options: &PlanOptions| -> Result<bool, TestCaseError> {
        let sums = IntegerSums::new(spec, &w, options).map_err(|e| fail(what, e))?;
        for (threads, executor) in executors() {
            let y = match multithread_tract_scope(executor, || sums.run(&x, zero_point, requested)) {
                Err(error) if error.to_string().starts_with("strategy: none is left") => return Ok(false),
                y => y.map_err(|e| fail(what, e))?,
            };
            expected.check(&y).map_err(|e| fail(format!("{what}, zero point {zero_point}, {threads} threads"), e))?;
        }
        Ok(true)
    };
    for (isa, integers) in Isa::ALL.iter().copied().filter(|isa| isa.is_available()).cartesian_product([2, 4]) {
        let skipped = |strategy| {
            // With tile registers, other strategies run as with AVX-512.
            (isa == Isa::Amx) != MATRIX_PRODUCTS.contains(&strategy)
                || (strategy == Algorithm::Reference && isa != Isa::Portable)
        };
        for strategy in Algorithm::ALL.iter().copied().filter(|strategy| !skipped(*strategy)) {
            let options = PlanOptions::default().with_strategy(strategy).with_isa(isa);
            let Some(options) = with_elements_of(integers, options) else { continue };
            let ran = run(&format!("{strategy} on {isa} of {integers}"), &options)?;
            let mut counts = counts.lock().expect("no other thread panicked");
            let (all, declined) = counts.entry((format!("{strategy} of {integers}"), isa)).or_default();
            *(if ran { all } else { declined }) += 1;
        }
    }
    prop_assert!(run("planner's choice", &PlanOptions::default())?, "a plan exists for every problem");
    Ok(())
}

/// Returns weights within −255..=255, which need not fit 8 bits.
fn wide_weights(random: &mut Random, shape: &[usize]) -> TractResult<Tensor> {
    let mut w = random.tensor(DatumType::I16, shape);
    w.try_as_plain_ram_mut()?.as_slice_mut::<i16>()?.iter_mut().for_each(|weight| *weight %= 256);
    Ok(w)
}

/// How many times the specs are drawn again, at most, while a strategy has not run.
const MORE_DRAWS: usize = 100;

/// Returns whether a strategy has run on any instruction set.
fn has_run(counts: &Counts, strategy: Algorithm) -> bool {
    let counts = counts.lock().expect("no other thread panicked");
    counts.iter().any(|((name, _), (ran, _))| name == strategy.name() && *ran > 0)
}

/// Runs a property and prints the counts. Each strategy of `needed` must have run.
fn property(name: &str, direction: Direction, types: &'static [DatumType], scale: Scale, needed: &[Algorithm]) {
    property_of(name, direction, types, scale, needed, check)
}

/// As [`property`], with another check of a spec.
fn property_of(
    name: &str,
    direction: Direction,
    types: &'static [DatumType],
    scale: Scale,
    needed: &[Algorithm],
    check: fn(&Case, &Counts) -> Result<(), TestCaseError>,
) {
    // Partition small problems for threads, too.
    TRACT_DECONV_SHARE_FROM.set(Some(0));
    let counts = Counts::default();
    let default = ProptestConfig::default();
    let cases = (default.cases / scale.one_in).max(1);
    let config = ProptestConfig { failure_persistence: None, cases, ..default };
    // A runner that has drawn its cases draws no more.
    let draw = || {
        let drawn = TestRunner::new(config.clone()).run(&case(direction, types, scale), |case| check(&case, &counts));
        drawn.map_err(|error| error.to_string())
    };
    let mut result = draw();
    // Few draws may miss a strategy that takes few specs.
    for _ in 0..MORE_DRAWS {
        if result.is_err() || needed.iter().all(|strategy| !strategy.is_available() || has_run(&counts, *strategy)) {
            break;
        }
        result = draw();
    }
    let mut report = format!("{name}: (strategy on isa: ran/declined)");
    for ((strategy, isa), (ran, declined)) in counts.lock().expect("no other thread panicked").iter() {
        report.push_str(&format!(" {strategy} on {isa}: {ran}/{declined};"));
    }
    // This avoids the capture of `print!`, as the counts belong to the run's record.
    let _ = writeln!(std::io::stderr(), "{report}");
    if let Err(error) = result {
        panic!("{name}: {error}");
    }
    for strategy in needed {
        assert!(has_run(&counts, *strategy) || !strategy.is_available(), "{name}: {strategy} declined every spec");
        if !MATRIX_PRODUCTS.contains(strategy) {
            continue;
        }
        for precision in ROUNDED.iter().filter(|precision| strategy.is_available_in(**precision)) {
            let (counts, what) = (counts.lock().expect("no other thread panicked"), precision.name());
            assert!(
                counts.keys().any(|(run, _)| *run == format!("{strategy} in {what}")),
                "{name}: {strategy} in {what}"
            );
        }
    }
}

const INTEGERS: [DatumType; 8] = [
    DatumType::I8,
    DatumType::U8,
    DatumType::I16,
    DatumType::U16,
    DatumType::I32,
    DatumType::U32,
    DatumType::I64,
    DatumType::U64,
];

#[test]
fn transposed_f32() {
    property("transposed_f32", Direction::Transposed, &[DatumType::F32], SMALL, Algorithm::ALL);
}

#[test]
fn transposed_f16_f64() {
    property("transposed_f16_f64", Direction::Transposed, &[DatumType::F16, DatumType::F64], SMALL, &[]);
}

#[test]
fn transposed_integers() {
    property("transposed_integers", Direction::Transposed, &INTEGERS, SMALL, &[]);
}

#[test]
fn forward_f32() {
    property("forward_f32", Direction::Forward, &[DatumType::F32], SMALL, &[]);
}

#[test]
fn forward_f16_f64() {
    property("forward_f16_f64", Direction::Forward, &[DatumType::F16, DatumType::F64], SMALL, &[]);
}

#[test]
fn forward_integers() {
    property("forward_integers", Direction::Forward, &INTEGERS, SMALL, &[]);
}

#[test]
fn transposed_integer_sums() {
    let types = &[DatumType::I8, DatumType::U8];
    property_of("transposed_integer_sums", Direction::Transposed, types, SMALL, &[], check_sums);
}

#[test]
fn forward_integer_sums() {
    let types = &[DatumType::I8, DatumType::U8];
    property_of("forward_integer_sums", Direction::Forward, types, SMALL, &[], check_sums);
}

#[test]
fn large_integer_sums() {
    let types = &[DatumType::I8, DatumType::U8];
    property_of("large_integer_sums", Direction::Transposed, types, LARGE, &[], check_sums);
    property_of("large_forward_integer_sums", Direction::Forward, types, LARGE, &[], check_sums);
}

#[test]
fn large() {
    property("large", Direction::Transposed, &[DatumType::F32], LARGE, &[]);
}

#[test]
fn large_forward() {
    property("large_forward", Direction::Forward, &[DatumType::F32], LARGE, &[]);
}

/// Outputs of 34 MB, which accumulator blocks store past the caches.
///
/// The planes have aligned rows, or rows that are not aligned, or different alignments from plane
/// to plane. The channels are whole vectors, or not.
#[test]
fn outputs_past_the_caches() -> TractResult<()> {
    tract_deconv::internals::fill_new_memory(true);
    let mut ran = BTreeMap::new();
    let layouts = [DataFormat::Ncx, DataFormat::Nxc];
    for ((size, channels), data_format) in
        [((184, 184), 64), ((184, 182), 64), ((183, 185), 64), ((190, 188), 60)].into_iter().cartesian_product(layouts)
    {
        let spec = DeconvSpec {
            direction: Direction::Transposed,
            data_format,
            filter_format: FilterFormat::Iox,
            in_channels: 6,
            out_channels: channels,
            group: 1,
            kernel: tvec!(2; 2),
            strides: tvec!(2; 2),
            dilations: tvec!(1; 2),
            padding: Padding::Explicit { begin: tvec!(0; 2), end: tvec!(0; 2) },
            output_padding: tvec!(0; 2),
        };
        let input = data_format.shape(1, 6, [size.0, size.1]);
        let mut random = Random(7);
        let x = random.tensor(DatumType::F32, &input);
        let w = random.tensor(DatumType::F32, &spec.filter_shape()).into_arc_tensor();
        let by = |strategy, isa| -> TractResult<Option<Tensor>> {
            let options = PlanOptions::default().with_strategy(strategy).with_isa(isa);
            let Ok(plan) = Plan::new(&spec, &input, None, DatumType::F32, &options) else { return Ok(None) };
            Ok(Some(Layer::new(plan.clone()).run(&x, &PackedFilter::pack(&spec, &plan.filter_layout(), &w)?, None)?))
        };
        // The definition would take a minute. Portable kernels never store past the caches.
        let want = by(Algorithm::DirectPositions, Isa::Portable)?.context("phases takes everything")?;
        let want = want.try_as_plain_ram()?.as_slice::<f32>()?;
        ensure!(size_of_val(want) > 32 << 20, "an output of {} elements is small", want.len());
        let isas = Isa::ALL.iter().copied().filter(|isa| isa.is_available());
        for (strategy, isa) in [Algorithm::MatrixPixels, Algorithm::DirectChannels, Algorithm::DirectPositions]
            .into_iter()
            .cartesian_product(isas)
        {
            let Some(got) = by(strategy, isa)? else { continue };
            let got = got.try_as_plain_ram()?.as_slice::<f32>()?;
            // Both results may be off, for sums of six products of numbers up to one.
            let off = |(got, want): (&f32, &f32)| {
                // Negated, so that NaN counts as wrong.
                let near = f64::from(got - want).abs() <= 2.0 * tolerance(DatumType::F32, 6, 6.0, f64::from(*want));
                !near
            };
            let wrong = got.iter().zip(want).position(off);
            ensure!(
                wrong.is_none() && got.len() == want.len(),
                "{strategy} on {isa}, {size:?} {data_format:?}: {wrong:?}"
            );
            *ran.entry(strategy as usize).or_insert(0) += 1;
        }
    }
    for strategy in [Algorithm::MatrixPixels, Algorithm::DirectChannels, Algorithm::DirectPositions]
        .into_iter()
        .filter(|s| s.is_available())
    {
        ensure!(ran.contains_key(&(strategy as usize)), "{strategy} declined every layer");
    }
    Ok(())
}

/// Depthwise layers of one phase, which random specs seldom draw: every size around a vector, every
/// reach past the edges, and single columns of taps.
#[test]
fn windows() {
    let counts = Counts::default();
    let ways = ["all rows of the input at once", "a window moving down the rows of the input"];
    let mut ran = ways.map(|_| 0);
    let sizes = [(1, 1), (4, 7), (5, 8), (6, 9), (7, 15), (9, 16), (14, 17), (3, 31), (2, 33)];
    let geometries = iproduct!([3usize, 5, 7], [false, true]).flat_map(|(rows, is_column)| {
        let steps = [(1, 1), (2, 1), (1, 2), (1, 3)];
        let reaches = [0, 1, rows / 2, rows - 1];
        iproduct!(steps, reaches).map(move |(steps, reach)| (rows, is_column, steps, reach))
    });
    for (i, ((rows, is_column, (stride, dilation), reach), size)) in geometries.cartesian_product(sizes).enumerate() {
        let kernel = [rows, if is_column { 1 } else { rows }];
        let reaches = [reach, if is_column { 0 } else { reach }];
        let begin = reaches.map(|reach| reach * dilation);
        let end = reaches.map(|reach| reach.saturating_sub(i % 2) * dilation);
        let span = kernel.map(|taps| (taps - 1) * dilation + 1);
        if (0..2).any(|axis| [size.0, size.1][axis] + begin[axis] + end[axis] < span[axis]) {
            continue;
        }
        let spec = DeconvSpec {
            direction: Direction::Forward,
            data_format: DataFormat::Ncx,
            filter_format: FilterFormat::GroupedOix,
            in_channels: 3,
            out_channels: 3,
            group: 3,
            kernel: kernel.into_iter().collect(),
            strides: tvec!(stride; 2),
            dilations: tvec!(dilation; 2),
            padding: Padding::Explicit {
                begin: begin.map(|pad| pad as i64).into_iter().collect(),
                end: end.map(|pad| pad as i64).into_iter().collect(),
            },
            output_padding: tvec!(0; 2),
        };
        let dt = [DatumType::F32, DatumType::F16, DatumType::F64][i % 3];
        let input: TVec<usize> = tvec!(1 + i % 2, 3, size.0, size.1);
        let options = PlanOptions::default().with_strategy(Algorithm::DepthwiseRows);
        let plan = Plan::new(&spec, &input, None, dt, &options).unwrap();
        ran.iter_mut().zip(ways).for_each(|(ran, way)| *ran += plan.to_string().contains(way) as usize);
        let case = Case { spec, input, requested: None, dt, bias: i % 2 == 0, tail: i % 4 == 1, seed: i as u64 };
        check(&case, &counts).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    }
    // Vectors without masked loads take only the second way.
    let skipped = usize::from(!Isa::Avx512.is_available());
    assert!(ran[skipped..].iter().all(|ran| *ran > 0), "{ways:?} ran {ran:?} times");
}

/// Groups of one input and several output channels, which random specs seldom draw: groups around those that fill a
/// vector, in parts of the output channels too, and every number of interleaved phases.
#[test]
fn several_output_channels_of_each_input() {
    let counts = Counts::default();
    let directions = [Direction::Transposed, Direction::Forward];
    let geometries = [(2, 2), (3, 2), (3, 3), (5, 5), (4, 6), (7, 7), (3, 1), (4, 4)];
    let cases = directions.into_iter().cartesian_product(geometries).cartesian_product([1usize, 2, 3]);
    for (i, ((direction, (kernel, stride)), rank)) in cases.enumerate() {
        let (group, group_out) = ([5, 8, 17, 33][i % 4], [2, 3, 4, 16, 20][i % 5]);
        let size = if direction == Direction::Forward { [60, 23, 11] } else { [19, 6, 3] }[rank - 1];
        let spec = DeconvSpec {
            direction,
            data_format: DataFormat::Ncx,
            filter_format: FilterFormat::GroupedOix,
            in_channels: group,
            out_channels: group * group_out,
            group,
            kernel: tvec!(kernel; rank),
            strides: tvec!(stride; rank),
            dilations: tvec!(1; rank),
            padding: Padding::Explicit {
                begin: tvec!(1; rank),
                end: tvec!((kernel as i64 - stride as i64).max(0); rank),
            },
            output_padding: tvec!(0; rank),
        };
        let dt = [DatumType::F32, DatumType::F16, DatumType::F64, DatumType::I32][i % 4];
        let input = spec.data_format.shape(1 + i % 2, group, std::iter::repeat_n(size, rank));
        let tail = i % 3 == 1 && dt.is_float();
        let case = Case { spec, input, requested: None, dt, bias: i % 2 == 0, tail, seed: i as u64 };
        check(&case, &counts).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    }
    for strategy in [Algorithm::DepthwisePixels, Algorithm::DepthwiseRows] {
        assert!(has_run(&counts, strategy), "{strategy:?} ran nowhere");
    }
}

/// Depthwise layers of three axes, whose lists of taps are kept between runs if they are short: few taps, many, and with
/// gaps between them, in either data format.
#[test]
fn depthwise_volumes() {
    let counts = Counts::default();
    let directions = [Direction::Transposed, Direction::Forward];
    let geometries = [(3, 1, 1, 6), (3, 2, 1, 7), (5, 1, 2, 9), (4, 2, 1, 5), (2, 2, 1, 4), (5, 3, 1, 7)];
    let formats = [DataFormat::Ncx, DataFormat::Nxc];
    let cases = directions.into_iter().cartesian_product(geometries).cartesian_product(formats);
    for (i, ((direction, (kernel, stride, dilation, size)), data_format)) in cases.enumerate() {
        let group = [16, 20, 9][i % 3];
        let reach = (kernel - 1) * dilation / 2;
        let spec = DeconvSpec {
            direction,
            data_format,
            filter_format: FilterFormat::GroupedOix,
            in_channels: group,
            out_channels: group,
            group,
            kernel: tvec!(kernel; 3),
            strides: tvec!(stride; 3),
            dilations: tvec!(dilation; 3),
            padding: Padding::Explicit { begin: tvec!(reach as i64; 3), end: tvec!(reach as i64 - 1; 3) },
            output_padding: tvec!(0; 3),
        };
        let dt = [DatumType::F32, DatumType::F16, DatumType::F64][i % 3];
        let input = data_format.shape(1 + i % 2, group, [size, size - 1, size + 1]);
        let case = Case { spec, input, requested: None, dt, bias: i % 2 == 0, tail: i % 4 == 1, seed: i as u64 };
        check(&case, &counts).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    }
    assert!(has_run(&counts, Algorithm::DepthwisePixels), "pixels ran nowhere");
}

/// Transposed layers of three axes and few output channels, whose products are all kept: one chunk of rows and several,
/// images, groups, long sums, and an input beyond L2, in either data format.
#[test]
fn volumes_of_few_channels() {
    let counts = Counts::default();
    // Group, and its channels in and out.
    let channels = [(1, 40, 2), (2, 9, 3), (1, 300, 1), (1, 20, 12)];
    let geometries = [(3, 1, 2, [5, 6, 7]), (2, 2, 1, [4, 3, 9]), (5, 2, 1, [4, 4, 3]), (4, 3, 1, [3, 5, 4])];
    let formats = [DataFormat::Ncx, DataFormat::Nxc];
    let far = ((1, 600, 1), (3, 2, 1, [9, 10, 11]));
    let cases = channels.into_iter().cartesian_product(geometries).chain([far]).cartesian_product(formats);
    for (i, (((group, ci, co), (kernel, stride, dilation, size)), data_format)) in cases.enumerate() {
        let (channels, taps) = ((group, ci, co), (kernel, stride, dilation));
        let spec = of_equal_axes((Direction::Transposed, data_format), channels, taps, (1, (i % 2) as i64), 3);
        let dt = [DatumType::F32, DatumType::F16, DatumType::F64, DatumType::I32][i % 4];
        let input = data_format.shape(1 + i % 2, group * ci, size);
        let tail = i % 3 == 1 && dt.is_float();
        let case = Case { spec, input, requested: None, dt, bias: i % 2 == 0, tail, seed: i as u64 };
        check(&case, &counts).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    }
    assert!(has_run(&counts, Algorithm::Col2im), "col2im ran nowhere");
}

/// Transposed layers of several axes whose positions read pixels through lists, and whose phases of an output row are
/// stored together: rows that end in any phase, phases without a tap, and too many positions for that.
#[test]
fn phases_of_a_row() {
    let counts = Counts::default();
    // Kernel, stride, the inputs of an axis, and elements less at the end.
    let geometries = [
        (4, 2, 5, 1),
        (3, 2, 4, 0),
        (2, 3, 3, 1),
        (5, 3, 4, 2),
        (4, 4, 3, 3),
        (8, 4, 2, 4),
        (1, 5, 1, 0),
        (3, 17, 2, 1),
    ];
    let cases = geometries.into_iter().cartesian_product([1usize, 2, 3]);
    let mut ways = [0; 2];
    for (i, ((kernel, stride, size, end), rank)) in cases.enumerate() {
        let (group, ci, co) = [(1, 5, 37), (2, 17, 20), (1, 40, 64), (3, 4, 48)][i % 4];
        let size = if i == 0 { 9000 } else { size };
        let spec = DeconvSpec {
            direction: Direction::Transposed,
            data_format: DataFormat::Ncx,
            filter_format: FilterFormat::Iox,
            in_channels: group * ci,
            out_channels: group * co,
            group,
            kernel: tvec!(kernel; rank),
            strides: tvec!(stride; rank),
            dilations: tvec!(1; rank),
            padding: Padding::Explicit { begin: tvec!(0; rank), end: tvec!(end; rank) },
            output_padding: tvec!(i % stride; rank),
        };
        let dt = [DatumType::F32, DatumType::F16, DatumType::F64, DatumType::I32][i % 4];
        let input = spec.data_format.shape(1 + i % 2, group * ci, std::iter::repeat_n(size, rank));
        let options = PlanOptions::default().with_strategy(Algorithm::Indirect);
        // 17 phases of three axes are too many.
        if let Ok(plan) = Plan::new(&spec, &input, None, dt, &options) {
            ways[usize::from(plan.to_string().contains("phases of a row"))] += 1;
        }
        let tail = i % 3 != 1 && dt.is_float();
        let case = Case { spec, input, requested: None, dt, bias: i % 2 == 0, tail, seed: i as u64 };
        check(&case, &counts).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    }
    assert!(has_run(&counts, Algorithm::Indirect) && ways[0] > 0 && ways[1] > 0, "indirect ran {ways:?} times");
}

/// Layers whose columns are split into whole kernels, so that rows follow each other in the copy of a tap as in the
/// input, and ones with a column more, or a row of taps more.
#[test]
fn columns_of_whole_kernels() {
    let counts = Counts::default();
    let columns = [(2, 16), (4, 36), (3, 9), (4, 5), (5, 40), (4, 37), (9, 18)];
    let rows = [(1, 1, 6), (1, 2, 7), (2, 1, 4), (1, 1, 1)];
    let formats = [DataFormat::Ncx, DataFormat::Nxc];
    let cases = columns.into_iter().cartesian_product(rows).cartesian_product(formats);
    for (i, (((kernel, width), (taps, step, height)), data_format)) in cases.enumerate() {
        let (group, ci, co) = [(3, 1, 1), (1, 5, 3), (4, 1, 4), (1, 40, 20), (2, 3, 2)][i % 5];
        let spec = DeconvSpec {
            direction: Direction::Forward,
            data_format,
            filter_format: FilterFormat::Iox,
            in_channels: group * ci,
            out_channels: group * co,
            group,
            kernel: tvec!(taps, kernel),
            strides: tvec!(step, kernel),
            dilations: tvec!(1; 2),
            padding: Padding::Explicit { begin: tvec!(0; 2), end: tvec!(0; 2) },
            output_padding: tvec!(0; 2),
        };
        let dt = [DatumType::F32, DatumType::F16, DatumType::F64, DatumType::I32][i % 4];
        let input = spec.data_format.shape(1 + i % 2, spec.in_channels, [height, width]);
        let tail = i % 3 != 1 && dt.is_float();
        let case = Case { spec, input, requested: None, dt, bias: i % 2 == 0, tail, seed: i as u64 };
        check(&case, &counts).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    }
    assert!(has_run(&counts, Algorithm::DirectPositions), "direct_positions ran nowhere");
}

/// A spec whose axes are all alike.
fn of_equal_axes(
    (direction, data_format): (Direction, DataFormat),
    (group, inputs, outputs): (usize, usize, usize),
    (kernel, stride, dilation): (usize, usize, usize),
    (begin, end): (i64, i64),
    rank: usize,
) -> DeconvSpec {
    DeconvSpec {
        direction,
        data_format,
        filter_format: FilterFormat::Iox,
        in_channels: group * inputs,
        out_channels: group * outputs,
        group,
        kernel: tvec!(kernel; rank),
        strides: tvec!(stride; rank),
        dilations: tvec!(dilation; rank),
        padding: Padding::Explicit { begin: tvec!(begin; rank), end: tvec!(end; rank) },
        output_padding: tvec!(0; rank),
    }
}

/// Layers of many input channels that are copied some channels at a time: sums that are kept for several panels and
/// phases, a last pass of fewer channels, and phases without a tap.
#[test]
fn copies_in_passes() {
    let counts = Counts::default();
    let channels = [(1, 33, 2), (2, 40, 3), (1, 100, 29), (1, 65, 1)];
    // Direction, kernel, stride, dilation, the inputs of each axis.
    let geometries: [(Direction, usize, usize, usize, &[usize]); 7] = [
        (Direction::Forward, 3, 1, 2, &[9, 11]),
        (Direction::Forward, 3, 2, 1, &[12, 7]),
        (Direction::Forward, 5, 1, 4, &[60]),
        (Direction::Transposed, 4, 2, 1, &[5, 6]),
        (Direction::Transposed, 2, 3, 1, &[4, 5]),
        (Direction::Transposed, 3, 2, 1, &[3, 4, 3]),
        (Direction::Transposed, 7, 1, 2, &[6, 5]),
    ];
    let mut in_passes = 0;
    for (i, ((group, ci, co), (direction, kernel, stride, dilation, size))) in
        channels.into_iter().cartesian_product(geometries).enumerate()
    {
        let rank = size.len();
        let (taps, pads) = ((kernel, stride, dilation), (1, (i % 2) as i64));
        let spec = of_equal_axes((direction, DataFormat::Ncx), (group, ci, co), taps, pads, rank);
        let dt = [DatumType::F32, DatumType::F16, DatumType::F64, DatumType::I32][i % 4];
        let input = spec.data_format.shape(1 + i % 2, spec.in_channels, size.iter().copied());
        let mut options = PlanOptions::default().with_strategy(Algorithm::DirectPositions);
        while let Ok(plan) = Plan::new(&spec, &input, None, dt, &options) {
            in_passes += usize::from(plan.to_string().contains("in passes of"));
            options.left_out.push(plan.variant());
        }
        let tail = i % 3 != 1 && dt.is_float();
        let case = Case { spec, input, requested: None, dt, bias: i % 2 == 0, tail, seed: i as u64 };
        check(&case, &counts).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    }
    assert!(in_passes >= 40, "{in_passes} plans copy their input in passes");
}

/// Layers for transformed tiles, whose sums are longer than those of random specs.
///
/// They include every number of taps that is split into twos and threes, and every way in which
/// tiles end.
#[test]
fn transformed_tiles() {
    let counts = Counts::default();
    let mut ran = 0;
    let sizes = [[2usize, 3], [3, 2], [4, 9], [5, 5], [7, 4]];
    // Kernel, stride, dilation.
    let lines =
        [(2, 1, 1), (3, 1, 1), (3, 1, 2), (4, 1, 1), (4, 2, 1), (5, 2, 1), (7, 2, 1), (8, 1, 1), (5, 3, 2), (6, 2, 3)];
    let directions = [Direction::Transposed, Direction::Forward];
    for (i, (((rank, line), size), direction)) in
        (1..=3usize).cartesian_product(lines).cartesian_product(sizes).cartesian_product(directions).enumerate()
    {
        // Replaces random numbers by values that alternate.
        let turn = |of: usize| (i / 2 + i / 7) % of;
        if rank == 3 && (i % 9 > 0 || line.0 > 4) {
            continue;
        }
        // A different number of taps on other axes.
        let other = lines[(i * 7 + 1) % lines.len()];
        let of_axes: TVec<(usize, usize, usize)> =
            (0..rank).map(|axis| if (axis + turn(2)).is_multiple_of(2) { line } else { other }).collect();
        let strides: TVec<usize> = match direction {
            Direction::Transposed => of_axes.iter().map(|line| line.1).collect(),
            // One axis may not suit tiles.
            Direction::Forward => (0..rank).map(|axis| if rank > 1 && axis == turn(5) { 2 } else { 1 }).collect(),
        };
        let kernel: TVec<usize> = of_axes.iter().map(|line| line.0).collect();
        let dilations: TVec<usize> = of_axes.iter().map(|line| line.2).collect();
        let reach = |axis: usize| ((kernel[axis] - 1) * dilations[axis]) as i64;
        let (begin, end): (TVec<i64>, TVec<i64>) = match direction {
            Direction::Transposed => (0..rank).map(|axis| (reach(axis) / 2, reach(axis) / 3)).unzip(),
            Direction::Forward => (0..rank).map(|axis| (reach(axis) - 1, 1)).unzip(),
        };
        let (group, channels) = (1 + turn(2), ([16, 17, 33][turn(3)], [16, 18, 35, 50][turn(4)]));
        let spec = DeconvSpec {
            direction,
            data_format: [DataFormat::Ncx, DataFormat::Nxc][turn(2)],
            filter_format: FilterFormat::Oix,
            in_channels: group * channels.0,
            out_channels: group * channels.1,
            group,
            kernel,
            strides,
            dilations,
            padding: Padding::Explicit { begin, end },
            output_padding: tvec!(0; rank),
        };
        let dt = [DatumType::F32, DatumType::F16, DatumType::F64][turn(3)];
        let spatial = (0..rank).map(|axis| size[axis % 2] + if rank == 1 { 4 * i % 41 } else { 0 });
        let input = spec.data_format.shape(1 + turn(2), spec.in_channels, spatial);
        if spec.problem(&input, None).is_err() {
            continue;
        }
        let options = PlanOptions::default().with_strategy(Algorithm::Winograd).with_isa(Isa::Portable);
        ran += usize::from(Plan::new(&spec, &input, None, dt, &options).is_ok());
        let case = Case { spec, input, requested: None, dt, bias: i % 2 == 0, tail: i % 3 == 1, seed: i as u64 };
        check(&case, &counts).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    }
    let _ = writeln!(std::io::stderr(), "transformed_tiles: {ran} layers");
    assert!(ran > 150, "{ran} layers had tiles to transform");
}

/// Transformed tiles in several accumulator blocks and cache blocks, compared with another strategy
/// because the definition takes long.
#[test]
fn transformed_tiles_of_large_layers() -> TractResult<()> {
    tract_deconv::internals::fill_new_memory(true);
    let layers = [
        (Direction::Forward, (16, 18), tvec!(3, 3), 1, 1, tvec!(70, 131)),
        (Direction::Forward, (70, 16), tvec!(3, 2), 1, 2, tvec!(67, 90)),
        (Direction::Transposed, (40, 20), tvec!(4, 4), 2, 1, tvec!(66, 75)),
        (Direction::Transposed, (33, 17), tvec!(7), 1, 3, tvec!(9001)),
    ];
    for ((direction, (inputs, outputs), kernel, stride, dilation, spatial), data_format) in
        layers.into_iter().cartesian_product([DataFormat::Ncx, DataFormat::Nxc])
    {
        let rank = kernel.len();
        let spec = DeconvSpec {
            direction,
            data_format,
            filter_format: FilterFormat::Oix,
            in_channels: inputs,
            out_channels: outputs,
            group: 1,
            kernel,
            strides: tvec!(stride; rank),
            dilations: tvec!(dilation; rank),
            padding: Padding::Explicit { begin: tvec!(1; rank), end: tvec!(1; rank) },
            output_padding: tvec!(0; rank),
        };
        let input = data_format.shape(1, inputs, spatial);
        let mut random = Random(11);
        let x = random.tensor(DatumType::F32, &input);
        let w = random.tensor(DatumType::F32, &spec.filter_shape()).into_arc_tensor();
        let terms = inputs * spec.kernel.iter().product::<usize>();
        let by = |strategy, isa| -> TractResult<Tensor> {
            let options = PlanOptions::default().with_strategy(strategy).with_isa(isa);
            let plan = Plan::new(&spec, &input, None, DatumType::F32, &options)?;
            Layer::new(plan.clone()).run(&x, &PackedFilter::pack(&spec, &plan.filter_layout(), &w)?, None)
        };
        let want = f64::from_tensor(&by(Algorithm::DirectPositions, Isa::best())?);
        for isa in Isa::ALL.iter().copied().filter(|isa| isa.is_available() && *isa != Isa::Amx) {
            let got = f64::from_tensor(&by(Algorithm::Winograd, isa)?);
            ensure!(got.len() == want.len());
            for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                // Both results may be off.
                let allowed = 2.0 * tolerance(DatumType::F32, terms, terms as f64, *want);
                ensure!((got - want).abs() <= allowed, "{isa}, {spec:?}: {got} for {want} at {at}");
            }
        }
    }
    Ok(())
}

fn definition() -> PlanOptions {
    PlanOptions::default().with_strategy(Algorithm::Reference).with_isa(Isa::Portable)
}

/// Runs a layer of f32 with seeded data. Returns its plan and its results, or none if there is no plan.
fn run(spec: &DeconvSpec, input: &[usize], options: &PlanOptions) -> TractResult<Option<(Plan, Vec<f64>)>> {
    let mut random = Random(13);
    let x = random.tensor(DatumType::F32, input);
    let w = random.tensor(DatumType::F32, &spec.filter_shape()).into_arc_tensor();
    let Ok(plan) = Plan::new(spec, input, None, DatumType::F32, options) else { return Ok(None) };
    let filter = PackedFilter::pack(spec, &plan.filter_layout(), &w)?;
    let answer = Layer::new(plan.clone()).run(&x, &filter, None)?;
    Ok(Some((plan, f64::from_tensor(&answer).into_iter().collect())))
}

/// Layers whose positions read pixels through lists, and whose panels all pass over a block before the next one: blocks
/// that end inside a row, phases with fewer positions, a last block of fewer tiles, groups, and two images.
#[test]
fn blocks_of_all_panels() -> TractResult<()> {
    let layers = [
        (Direction::Forward, (1, 20, 70), (3, 2, 1), tvec!(71, 61)),
        (Direction::Forward, (2, 20, 40), (3, 1, 2), tvec!(67, 65)),
        (Direction::Forward, (1, 20, 33), (2, 3, 1), tvec!(19, 17, 16)),
        (Direction::Forward, (1, 20, 50), (1, 1, 1), tvec!(5003)),
        (Direction::Transposed, (1, 20, 40), (3, 2, 1), tvec!(69, 63)),
        (Direction::Transposed, (1, 20, 35), (4, 3, 1), tvec!(65, 67)),
    ];
    let in_blocks = on_a_zen3(Algorithm::Indirect, &layers, (1, 0), "all panels pass over blocks")?;
    ensure!(in_blocks >= 6, "{in_blocks} plans compute blocks");
    Ok(())
}

/// Layers that read planes in place, and in which several panels sum some input channels before the next ones: a last pass of
/// fewer channels, a last panel of fewer lanes, sets of fewer panels, short accumulator blocks, groups, and phases of a row.
#[test]
fn passes_of_several_panels() -> TractResult<()> {
    let layers = [
        (Direction::Forward, (1, 301, 70), (1, 1, 1), tvec!(300)),
        (Direction::Forward, (2, 270, 57), (1, 1, 1), tvec!(27, 41)),
        (Direction::Forward, (1, 515, 1090), (1, 1, 1), tvec!(197)),
        (Direction::Transposed, (1, 290, 33), (2, 2, 1), tvec!(3, 300)),
    ];
    let in_passes = on_a_zen3(Algorithm::DirectChannels, &layers, (0, 0), "panels before the next")?;
    ensure!(in_passes >= 4, "{in_passes} plans have passes of several panels");
    Ok(())
}

/// A direction, groups with their input and output channels, kernel, stride and dilation, and the spatial shape.
type Equal = (Direction, (usize, usize, usize), (usize, usize, usize), TVec<usize>);

/// Checks layers whose input exceeds half of the L2 of a Zen 3, planned for that machine, on every instruction set. Returns how
/// many plans say `what`.
fn on_a_zen3(strategy: Algorithm, layers: &[Equal], padding: (i64, i64), what: &str) -> TractResult<usize> {
    tract_deconv::internals::fill_new_memory(true);
    let options = PlanOptions::default().with_strategy(strategy).with_machine(Machine::ZEN3);
    let mut said = 0;
    for (direction, channels, taps, spatial) in layers {
        let (inputs, kernel) = (channels.1, taps.0);
        let format = DataFormat::Ncx;
        let spec = of_equal_axes((*direction, format), *channels, *taps, padding, spatial.len());
        let input = format.shape(2, spec.in_channels, spatial.clone());
        let (_, want) = run(&spec, &input, &definition())?.context("the definition declines nothing")?;
        let terms = inputs * kernel.pow(spec.kernel.len() as u32);
        for isa in Isa::ALL.iter().copied().filter(|isa| isa.is_available()) {
            let Some((plan, got)) = run(&spec, &input, &options.clone().with_isa(isa))? else { continue };
            let text = plan.to_string();
            said += usize::from(text.contains(what));
            ensure!(got.len() == want.len());
            for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                let allowed = 2.0 * tolerance(DatumType::F32, terms, terms as f64, *want);
                ensure!((got - want).abs() <= allowed, "{text}, {spec:?}: {got} for {want} at {at}");
            }
        }
    }
    Ok(said)
}

/// Layers whose input is read in place, in several blocks, prefetched, or in passes over its channels, and whose last
/// tile reaches past the input's end, against the definition.
#[test]
fn input_in_place() -> TractResult<()> {
    tract_deconv::internals::fill_new_memory(true);
    let layers = [
        (Direction::Forward, (1, 17, 40), (1, 1), tvec!(1025)),
        (Direction::Forward, (2, 9, 24), (1, 1), tvec!(33, 67)),
        (Direction::Forward, (1, 300, 7), (1, 1), tvec!(300)),
        (Direction::Forward, (1, 600, 21), (1, 1), tvec!(1021)),
        (Direction::Forward, (1, 1100, 1), (1, 1), tvec!(4103)),
        (Direction::Forward, (2, 130, 29), (1, 1), tvec!(83, 105)),
        (Direction::Transposed, (1, 33, 19), (2, 2), tvec!(20, 29)),
        (Direction::Transposed, (2, 40, 2), (3, 3), tvec!(331)),
        (Direction::Transposed, (1, 210, 3), (2, 2), tvec!(81, 101)),
        (Direction::Transposed, (1, 150, 2), (1, 3), tvec!(14_401)),
    ];
    let (mut in_place, mut in_passes, mut few_planes) = (0, 0, 0);
    for (direction, (group, inputs, outputs), (kernel, stride), spatial) in layers {
        let rank = spatial.len();
        let channels = (group, inputs, outputs);
        let spec = of_equal_axes((direction, DataFormat::Ncx), channels, (kernel, stride, 1), (0, 0), rank);
        let input = DataFormat::Ncx.shape(1, spec.in_channels, spatial);
        let (_, want) = run(&spec, &input, &definition())?.context("the definition declines nothing")?;
        let isas = Isa::ALL.iter().copied().filter(|isa| isa.is_available());
        for (strategy, isa) in
            [Algorithm::DirectPositions, Algorithm::DirectChannels].into_iter().cartesian_product(isas)
        {
            let mut options = PlanOptions::default().with_strategy(strategy).with_isa(isa);
            while let Some((plan, got)) = run(&spec, &input, &options)? {
                let text = plan.to_string();
                let first = options.left_out.is_empty();
                ensure!(!first || strategy != Algorithm::DirectPositions || text.contains("read in place"), "{text}");
                in_place += usize::from(text.contains("read in place"));
                in_passes += usize::from(text.contains("in passes of"));
                // 130 planes of several pages each, in three passes.
                few_planes += usize::from(text.contains("passes of 44x1"));
                ensure!(got.len() == want.len());
                for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                    let allowed = 2.0 * tolerance(DatumType::F32, inputs, inputs as f64, *want);
                    ensure!((got - want).abs() <= allowed, "{text}, {spec:?}: {got} for {want} at {at}");
                }
                if plan.variant().is_empty() {
                    break;
                }
                options.left_out.push(plan.variant());
            }
        }
    }
    ensure!(in_place >= 6, "{in_place} plans read their input in place");
    ensure!(few_planes > 0, "no pass is limited to few planes");
    // Caches larger than these inputs, and CPUs without prefetch instructions, leave nothing to be read in passes.
    ensure!(in_passes > 0 || !cfg!(target_arch = "x86_64"), "no plan reads its input in passes");
    Ok(())
}
