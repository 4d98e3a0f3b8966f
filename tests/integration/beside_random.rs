//! Random ops behind a layer, which this crate computes in tract's place.
//!
//! Each is compared with its definition in float64, and with tract's own op, which stays if fusion is
//! turned off. It runs on every available instruction set, on one thread and on two, which must give
//! the same bits. `PROPTEST_CASES` sets the number of ops per property.

use crate::common::beside::layer_then;
use crate::common::oracle::{FromTensor, tolerance};
use crate::common::proto::{Dim, Model, Node};
use crate::common::random::Random;
use crate::common::run::{guarded, run};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use tract_core::internal::tract_ndarray::{ArrayD, Axis, Dimension, indices};
use tract_core::internal::*;
use tract_core::prelude::multithread::{Executor, multithread_tract_scope};
use tract_deconv::knobs::TRACT_DECONV_SHARE_FROM;
use tract_deconv::{
    BetweenLayers, Isa, OptF16Arithmetic, OptReduce, OptResize, OptSoftmax, OptTranspose, Options, WithConv,
    WithDeconvOptions,
};
use tract_onnx::pb::ModelProto;
use tract_onnx::prelude::{Framework, InferenceModelExt};

/// The most values of an input.
const MOST_VALUES: usize = 20_000;

/// Sizes around vectors, around the kernels' blocks of 64, 128 and 256 columns, and around the sizes
/// from which on rows are computed otherwise.
const LONG: [usize; 24] =
    [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 300];

/// The input of a model.
#[derive(Clone, Debug)]
struct Data {
    dt: DatumType,
    shape: Vec<usize>,
    /// The axes whose sizes are symbols have their bit set. That of channels is never one.
    open: u8,
    /// One in a hundred values that is NaN or infinite.
    special: usize,
    /// The values are few, or else random, up to this one.
    few: bool,
    largest: f64,
    seed: u64,
}

impl Data {
    fn x(&self) -> Tensor {
        let mut random = Random(self.seed);
        let value = || match random.below(100) {
            at if at < self.special => [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][random.below(3)],
            _ if self.few => random.below(5) as f64 - 2.0,
            _ => self.largest * random.unit(),
        };
        let values = Tensor::from(ArrayD::from_shape_simple_fn(&*self.shape, value));
        values.cast_to_dt(self.dt).expect("a float type").into_owned()
    }

    fn dims(&self) -> Vec<Dim> {
        let dim = |(axis, size): (usize, &usize)| {
            let open = axis != 1 && (self.open >> axis & 1 == 1 || *size == 0);
            if open { Dim::Symbol(format!("D{axis}")) } else { Dim::Size(*size) }
        };
        self.shape.iter().enumerate().map(dim).collect()
    }

    fn model(&self, opset: i64, tail: impl FnOnce(Model, &str) -> (Model, String)) -> ModelProto {
        layer_then(opset, self.dt, &self.dims(), self.shape[1], tail)
    }
}

fn data(types: &'static [DatumType], few: bool) -> impl Strategy<Value = Data> {
    let small = prop::collection::vec(prop::sample::select(&[1usize, 2, 3, 4, 5, 7, 8, 9][..]), 5);
    let long = (prop::sample::select(&LONG[..]), 0usize..5);
    let special = prop_oneof![6 => Just(0usize), 1 => Just(2), 1 => Just(30), 1 => Just(100)];
    let empty = prop_oneof![15 => Just(1usize), 1 => 0usize..5];
    let largest = prop::sample::select(&[1.0, 8.0][..]);
    let of = (3usize..=5, small, long, any::<u8>(), special, empty, prop::sample::select(types), largest, any::<u64>());
    of.prop_map(move |(rank, mut shape, (long, at), open, special, empty, dt, largest, seed)| {
        shape.truncate(rank);
        shape[at % rank] = long;
        while shape.iter().product::<usize>() > MOST_VALUES {
            let most = (0..rank).filter(|axis| *axis != at % rank).max_by_key(|axis| shape[*axis]).unwrap_or(0);
            shape[most] -= 1;
        }
        // The layer has channels.
        if empty != 1 && empty < rank {
            shape[empty] = 0;
        }
        let largest = if dt == DatumType::F16 { 1.0 } else { largest };
        Data { dt, shape, open, special, few, largest, seed }
    })
}

fn optimised(proto: &ModelProto, options: &Options) -> TractResult<TypedModel> {
    let onnx = tract_onnx::onnx().with_deconv_options(options)?.with_conv();
    onnx.model_for_proto_model(proto)?.into_typed()?.into_optimized()
}

/// A result of this crate.
struct Ours {
    y: Arc<Tensor>,
    /// Whether this crate's op has computed it, and not tract's.
    replaced: bool,
}

/// A result per instruction set, and tract's, if it has one.
type Ways = (Vec<Ours>, Option<Arc<Tensor>>);

/// Runs a model in all ways. None if neither this crate nor tract can run it.
fn ways(proto: &ModelProto, x: &Tensor, is_ours: fn(&TypedNode) -> bool) -> Result<Option<Ways>, String> {
    static TWO: OnceLock<Executor> = OnceLock::new();
    let two = TWO.get_or_init(|| Executor::multithread(2));
    let x = std::slice::from_ref(x);
    let plain = || run(optimised(proto, &Options::default().with_fusion(false))?, x);
    let theirs = guarded(plain).ok().map(|mut y| y.remove(0));
    let mut ours = vec![];
    for isa in Isa::ALL.iter().copied().filter(|isa| isa.is_available()) {
        let all = guarded(|| {
            let model = optimised(proto, &Options::default().with_isa(isa))?;
            let replaced = model.nodes().iter().any(is_ours);
            let by = |executor: &Executor| multithread_tract_scope(executor.clone(), || run(model.clone(), x));
            Ok((replaced, by(&Executor::SingleThread)?.remove(0), by(two)?.remove(0)))
        });
        match all {
            Ok((_, alone, shared)) if alone.as_bytes() != shared.as_bytes() => {
                return Err(format!("{isa}: other bits on two threads"));
            }
            Ok((replaced, y, _)) => ours.push(Ours { y, replaced }),
            // tract's own ops may panic, as over empty axes.
            Err(error) if theirs.is_some() || error.to_string().starts_with("PANIC panicked at src/") => {
                return Err(format!("{isa}: {error}"));
            }
            Err(_) => return Ok(None),
        }
    }
    Ok(Some((ours, theirs)))
}

/// Compares a result with float64 values. `allowed` takes the index and the value.
fn compare(
    what: &str,
    expected: &ArrayD<f64>,
    found: &Tensor,
    allowed: impl Fn(usize, f64) -> f64,
) -> Result<(), String> {
    if found.shape() != expected.shape() {
        return Err(format!("{what}: shape {:?}, {:?} was expected", found.shape(), expected.shape()));
    }
    for (i, (expected, found)) in expected.iter().zip(&f64::from_tensor(found)).enumerate() {
        let same = expected == found || expected.is_nan() && found.is_nan();
        if !same && (expected - found).abs().partial_cmp(&allowed(i, *expected)) != Some(std::cmp::Ordering::Less) {
            return Err(format!("{what}: {found} for {expected} at {i}, {:e} is allowed", allowed(i, *expected)));
        }
    }
    Ok(())
}

/// Draws ops and checks them. This crate must compute one in `least` of them.
fn property<C: std::fmt::Debug>(
    name: &str,
    least: usize,
    cases: impl Strategy<Value = C>,
    check: impl Fn(&C, &AtomicUsize) -> Result<(), String>,
) {
    tract_deconv::internals::fill_new_memory(true);
    // Small tensors are shared by threads, too.
    TRACT_DECONV_SHARE_FROM.set(Some(0));
    let (drawn, replaced) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let result = TestRunner::new(config).run(&cases, |case| {
        drawn.fetch_add(1, Ordering::Relaxed);
        check(&case, &replaced).map_err(TestCaseError::fail)
    });
    let (drawn, replaced) = (drawn.into_inner(), replaced.into_inner());
    let _ = writeln!(std::io::stderr(), "{name}: this crate's op ran {replaced} of {drawn} times");
    if let Err(error) = result {
        panic!("{name}: {error}");
    }
    assert!(replaced * least >= drawn, "{name}: this crate's op ran {replaced} of {drawn} times");
}

const FLOATS: &[DatumType] = &[DatumType::F16, DatumType::F32, DatumType::F64];

/// For each value the index of its group, the values that differ on some axes only.
fn groups(shape: &[usize], axes: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let kept: Vec<usize> = (0..shape.len()).map(|axis| if axes.contains(&axis) { 1 } else { shape[axis] }).collect();
    let group = |at: &[usize]| {
        at.iter().zip(&kept).fold(0, |group, (at, size)| group * size + if *size == 1 { 0 } else { *at })
    };
    let of = indices(shape).into_iter().map(|at| group(at.slice())).collect();
    (kept, of)
}

/// The values of each group, in order.
fn grouped(x: &ArrayD<f64>, axes: &[usize]) -> (Vec<usize>, Vec<usize>, Vec<Vec<f64>>) {
    let (kept, of) = groups(x.shape(), axes);
    let mut values = vec![vec![]; kept.iter().product()];
    x.iter().zip(&of).for_each(|(x, group)| values[*group].push(*x));
    (kept, of, values)
}

#[test]
fn softmax() {
    let cases = (data(FLOATS, false), 0usize..5, any::<bool>(), any::<bool>(), any::<bool>());
    property("softmax", 3, cases, |(data, axis, log, negative, old), replaced| {
        let rank = data.shape.len();
        let axis = axis % rank;
        let written = if *negative { axis as i64 - rank as i64 } else { axis as i64 };
        // Before opset 13, all axes from this one on belong together.
        let (opset, axes): (i64, Vec<usize>) = if *old { (11, (axis..rank).collect()) } else { (13, vec![axis]) };
        let proto = data.model(opset, |model, from| {
            let node = Node::new(if *log { "LogSoftmax" } else { "Softmax" }).named("s");
            (model.node(node.inputs(&[from]).output("s").int("axis", written)), "s".into())
        });
        let x = data.x();
        let values = f64::from_tensor(&x);
        let (_, of, groups) = grouped(&values, &axes);
        let length = axes.iter().map(|axis| data.shape[*axis]).product::<usize>();
        let largest: Vec<f64> =
            groups.iter().map(|group| group.iter().copied().fold(f64::NEG_INFINITY, f64::max)).collect();
        let sums: Vec<f64> = groups
            .iter()
            .zip(&largest)
            .map(|(group, largest)| match group.iter().any(|x| x.is_nan()) {
                true => f64::NAN,
                false => group.iter().map(|x| (x - largest).exp()).sum(),
            })
            .collect();
        let expected = values.iter().zip(&of).map(|(x, group)| {
            let behind = x - largest[*group];
            if *log { behind - sums[*group].ln() } else { behind.exp() / sums[*group] }
        });
        let expected = ArrayD::from_shape_vec(values.raw_dim(), expected.collect()).map_err(|e| e.to_string())?;
        // The difference to the largest value rounds as well, by its own size.
        let spread = 2.0 * data.largest;
        let allowed = |_, y: f64| {
            let magnitude = if *log { 1.0 + y.abs() + spread } else { y.abs() * (1.0 + spread) };
            tolerance(data.dt, length + 16, magnitude, y)
        };
        let Some((ours, theirs)) = ways(&proto, &x, |node| node.op_is::<OptSoftmax>())? else { return Ok(()) };
        for Ours { y, replaced: is } in &ours {
            if *is {
                compare("softmax", &expected, y, allowed)?;
            }
        }
        replaced.fetch_add(ours[0].replaced as usize, Ordering::Relaxed);
        // tract's exponential is a rough one, and its f16 rounds at every step.
        let rough = |_, y: f64| if *log { 0.03 } else { 0.03 * y.abs() + 1e-4 };
        match theirs {
            Some(theirs) if data.special == 0 && (data.dt != DatumType::F16 || !log) => {
                compare("softmax as by tract", &f64::from_tensor(&theirs), &ours[0].y, rough)
            }
            _ => Ok(()),
        }
    });
}

/// A reduction, as a model spells it.
#[derive(Clone, Debug)]
struct Reduction {
    op: &'static str,
    /// In this order. All axes, or none, if there are none and the next one is set.
    axes: Vec<usize>,
    noop: bool,
    keep: bool,
    opset: i64,
    negative: bool,
    /// Whether no axes are an empty list, or no input at all.
    listed: bool,
}

impl Reduction {
    fn model(&self, data: &Data) -> ModelProto {
        let rank = data.shape.len() as i64;
        let axes = self.axes.iter().map(|axis| *axis as i64 - if self.negative { rank } else { 0 });
        let axes: Vec<i64> = axes.collect();
        data.model(self.opset, |model, from| {
            let node = Node::new(self.op).named("r").inputs(&[from]).output("r").int("keepdims", self.keep as i64);
            let is_input = self.opset >= 18 || self.opset >= 13 && self.op == "ReduceSum";
            let (model, node) = match is_input {
                true if !axes.is_empty() || self.listed => {
                    (model.initializer("axes", &tensor1(&axes)), node.input("axes"))
                }
                false if !axes.is_empty() => (model, node.ints("axes", &axes)),
                _ => (model, node),
            };
            let node = if is_input { node.int("noop_with_empty_axes", self.noop as i64) } else { node };
            (model.node(node), "r".into())
        })
    }
}

fn reduction() -> impl Strategy<Value = (Data, Reduction)> {
    let op = prop::sample::select(&["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"][..]);
    // Mostly a range of axes, which this crate takes.
    let axes = prop_oneof![
        8 => (0usize..4, 1usize..=3).prop_map(|(first, count)| (first..first + count).collect::<Vec<_>>()),
        2 => prop::sample::subsequence(vec![0usize, 1, 2, 3, 4], 0..=4),
    ];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (data(FLOATS, false), op, axes, flags, prop::sample::select(&[11i64, 13, 18][..]), any::<bool>()).prop_map(
        |(data, op, mut axes, (noop, keep, negative, listed), opset, reversed)| {
            axes.retain(|axis| *axis < data.shape.len());
            if reversed {
                axes.reverse();
            }
            (data, Reduction { op, axes, noop, keep, opset, negative, listed })
        },
    )
}

/// Of values that are not smaller or not larger than a later one, that one. NaN neither is.
fn extreme(largest: bool, values: &[f64]) -> f64 {
    let none = if largest { f64::NEG_INFINITY } else { f64::INFINITY };
    values.iter().copied().fold(none, |to, x| if if largest { to > x } else { to < x } { to } else { x })
}

#[test]
fn reductions() {
    property("reductions", 3, reduction(), |(data, reduction), replaced| {
        let is_input = reduction.opset >= 18 || reduction.opset >= 13 && reduction.op == "ReduceSum";
        let all = reduction.axes.is_empty() && !(is_input && reduction.noop);
        let axes: Vec<usize> = if all { (0..data.shape.len()).collect() } else { reduction.axes.clone() };
        let x = data.x();
        let values = f64::from_tensor(&x);
        let (mut kept, _, groups) = grouped(&values, &axes);
        let terms = axes.iter().map(|axis| data.shape[*axis]).product::<usize>();
        let y = groups.iter().map(|group| match reduction.op {
            "ReduceSum" => group.iter().sum::<f64>(),
            "ReduceMean" => group.iter().sum::<f64>() / terms as f64,
            op => extreme(op == "ReduceMax", group),
        });
        let y: Vec<f64> = y.collect();
        if !reduction.keep {
            let mut axis = 0..;
            kept.retain(|_| axis.next().is_none_or(|axis| !axes.contains(&axis)));
        }
        let expected = ArrayD::from_shape_vec(&*kept, y).map_err(|e| e.to_string())?;
        let adds = matches!(reduction.op, "ReduceSum" | "ReduceMean");
        let (divisor, roundings) = if reduction.op == "ReduceMean" { (terms as f64, 3.0) } else { (1.0, 1.0) };
        let finite = |group: &Vec<f64>| group.iter().map(|x| x.abs()).sum::<f64>();
        let allowed = |i: usize, y: f64| match adds {
            // A mean is a sum times a reciprocal. All three are rounded.
            true => tolerance(data.dt, terms + 2, finite(&groups[i]) / divisor, y) * roundings,
            false => 0.0,
        };
        let proto = reduction.model(data);
        let Some((ours, theirs)) = ways(&proto, &x, |node| node.op_is::<OptReduce>())? else { return Ok(()) };
        let is_ours = ours[0].replaced;
        replaced.fetch_add(is_ours as usize, Ordering::Relaxed);
        for Ours { y, .. } in ours.iter().filter(|ours| ours.replaced) {
            compare(reduction.op, &expected, y, allowed)?;
        }
        let Some(theirs) = theirs else { return Ok(()) };
        let theirs = f64::from_tensor(&theirs);
        if adds {
            // tract adds up in its own order, and halves in f16.
            let own = |i: usize, y: f64| match data.dt {
                DatumType::F16 => 2e-3 * (1.0 + finite(&groups[i]) * terms as f64),
                _ => (terms as f64).sqrt().max(4.0) * allowed(i, y),
            };
            return compare("as by tract", &theirs, &ours[0].y, own);
        }
        // tract begins with the least number, so that no result is minus infinity. It reads contiguous
        // f32 by a kernel with other rules for NaN.
        let bounded = expected.iter().all(|y| !y.is_infinite());
        let strided = data.special == 0 || data.dt != DatumType::F32;
        if is_ours && bounded && strided { compare("as by tract", &theirs, &ours[0].y, |_, _| 0.0) } else { Ok(()) }
    });
}

#[test]
fn positions_of_extremes() {
    let cases = (data(FLOATS, true), 0usize..5, any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    property("positions_of_extremes", 2, cases, |(data, axis, largest, last, keep, negative), replaced| {
        let rank = data.shape.len();
        let axis = axis % rank;
        let proto = data.model(13, |model, from| {
            let node = Node::new(if *largest { "ArgMax" } else { "ArgMin" }).named("r").inputs(&[from]).output("r");
            let node = node.int("axis", axis as i64 - if *negative { rank as i64 } else { 0 });
            let node = node.int("keepdims", *keep as i64).int("select_last_index", *last as i64);
            (model.node(node), "r".into())
        });
        let x = data.x();
        let (mut kept, _, groups) = grouped(&f64::from_tensor(&x), &[axis]);
        let position = |group: &Vec<f64>| {
            let values = group.iter().enumerate().filter(|(_, x)| !x.is_nan());
            let better = |x: f64, best: f64| if *largest { x > best } else { x < best };
            let best = values.fold(None, |best, (i, x)| match best {
                Some((_, y)) if !(better(*x, y) || *last && *x == y) => best,
                _ => Some((i, *x)),
            });
            best.map_or(0, |(i, _)| i) as f64
        };
        let y = groups.iter().map(position).collect();
        if !keep {
            kept.remove(axis);
        }
        let expected = ArrayD::from_shape_vec(&*kept, y).map_err(|e| e.to_string())?;
        let Some((ours, theirs)) = ways(&proto, &x, |node| node.op_is::<OptReduce>())? else { return Ok(()) };
        replaced.fetch_add(ours[0].replaced as usize, Ordering::Relaxed);
        for Ours { y, .. } in &ours {
            if y.datum_type() != DatumType::I64 {
                return Err(format!("positions of type {:?}", y.datum_type()));
            }
            compare("position", &expected, y, |_, _| 0.0)?;
        }
        // tract takes infinities for worse than the least number.
        match theirs.filter(|_| data.special == 0) {
            Some(theirs) => compare("as by tract", &f64::from_tensor(&theirs), &ours[0].y, |_, _| 0.0),
            None => Ok(()),
        }
    });
}

/// A `Resize`, as a model spells it.
#[derive(Clone, Debug)]
struct Resize {
    opset: i64,
    mode: &'static str,
    coordinates: &'static str,
    nearest: &'static str,
    /// Per axis.
    scales: Vec<f32>,
    /// Whether the model has output sizes instead of scales.
    sized: bool,
    /// Whether the model names the axes that change.
    named: bool,
}

fn resize() -> impl Strategy<Value = (Data, Resize)> {
    let coordinates = [
        "half_pixel",
        "align_corners",
        "asymmetric",
        "pytorch_half_pixel",
        "half_pixel_symmetric",
        "tf_half_pixel_for_nn",
    ];
    let nearest = ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"];
    let scale = || prop_oneof![3 => Just(1f32), 5 => Just(2f32), 8 => prop::sample::select(vec![3f32, 4.0, 0.5, 1.5, 2.5, 0.7, 1.1, 3.3, 0.25])];
    let outer = || prop_oneof![9 => Just(1f32), 1 => scale()];
    (
        data(&[DatumType::F16, DatumType::F32, DatumType::F32], false),
        prop::sample::select(vec![10i64, 11, 13, 18, 19]),
        prop::sample::select(vec!["linear", "nearest"]),
        prop::sample::select(coordinates.to_vec()),
        prop::sample::select(nearest.to_vec()),
        (outer(), outer(), scale(), scale(), scale()),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(mut data, opset, mode, coordinates, nearest, scales, sized, named)| {
            let (rank, sized) = (data.shape.len(), sized && opset > 10);
            data.shape.iter_mut().for_each(|size| *size = (*size).max(1));
            // Opset 10 has no other rules.
            let (coordinates, nearest) =
                if opset == 10 { ("asymmetric", "round_prefer_floor") } else { (coordinates, nearest) };
            let mut scales = [scales.0, scales.1, scales.2, scales.3, scales.4][..rank].to_vec();
            for (scale, size) in scales.iter_mut().zip(&data.shape) {
                if *size as f32 * *scale < 1.0 {
                    *scale = 1.0;
                }
            }
            // Other sizes are known when a model is loaded.
            if !sized && scales.iter().any(|scale| scale.fract() != 0.0) {
                data.open = 0;
            }
            (data, Resize { opset, mode, coordinates, nearest, scales, sized, named: named && opset >= 18 })
        })
}

impl Resize {
    fn output(&self, input: &[usize]) -> Vec<usize> {
        input.iter().zip(&self.scales).map(|(size, scale)| (*size as f32 * scale) as usize).collect()
    }

    /// The scales by which coordinates are computed.
    fn exact_scales(&self, input: &[usize]) -> Vec<f64> {
        let output = self.output(input);
        let scale =
            |axis: usize| if self.sized { output[axis] as f64 / input[axis] as f64 } else { self.scales[axis] as f64 };
        (0..input.len()).map(scale).collect()
    }

    fn model(&self, data: &Data) -> ModelProto {
        self.model_then(data, |model, from| (model, from.to_string()))
    }

    fn model_then(&self, data: &Data, then: impl FnOnce(Model, &str) -> (Model, String)) -> ModelProto {
        let output = self.output(&data.shape);
        let changed = |axis: &usize| !self.named || self.scales[*axis] != 1.0;
        let axes: Vec<usize> = (0..data.shape.len()).filter(changed).collect();
        let scales: Vec<f32> = axes.iter().map(|axis| self.scales[*axis]).collect();
        let sizes: Vec<i64> = axes.iter().map(|axis| output[*axis] as i64).collect();
        data.model(self.opset, |model, from| {
            let model = match self.sized {
                true => model.initializer("sizes", &tensor1(&sizes)),
                false => model.initializer("scales", &tensor1(&scales)),
            };
            // Opset 11 requires both.
            let empty = if self.opset == 11 { "empty" } else { "" };
            let model = if self.opset == 11 {
                model.initializer("empty", &Tensor::zero::<f32>(&[0]).expect("empty"))
            } else {
                model
            };
            let inputs = match (self.opset, self.sized) {
                (10, _) => vec![from, "scales"],
                (_, false) => vec![from, empty, "scales"],
                (_, true) => vec![from, empty, empty, "sizes"],
            };
            let node = Node::new("Resize").named("r").inputs(&inputs).output("r").string("mode", self.mode);
            let node = match self.opset {
                10 => node,
                _ => {
                    node.string("coordinate_transformation_mode", self.coordinates).string("nearest_mode", self.nearest)
                }
            };
            // Opset 10 has no such attribute, but tract reads it there as well.
            let node =
                if self.opset == 10 { node.string("coordinate_transformation_mode", "asymmetric") } else { node };
            let axes: Vec<i64> = axes.iter().map(|axis| *axis as i64).collect();
            then(model.node(if self.named { node.ints("axes", &axes) } else { node }), "r")
        })
    }

    fn coordinate(&self, at: usize, scale: f64, input: usize, output: usize) -> f64 {
        let (x, size) = (at as f64, input as f64);
        match self.coordinates {
            "half_pixel" => (x + 0.5) / scale - 0.5,
            "align_corners" if scale * size == 1.0 => 0.0,
            "align_corners" => x * (size - 1.0) / (scale * size - 1.0),
            "asymmetric" => x / scale,
            "pytorch_half_pixel" if output <= 1 => 0.0,
            "pytorch_half_pixel" => (x + 0.5) / scale - 0.5,
            "half_pixel_symmetric" => {
                let adjustment = output as f64 / (scale * size);
                size / 2.0 * (1.0 - adjustment) + (x + 0.5) / scale - 0.5
            }
            _ => (x + 0.5) / scale,
        }
    }

    /// The positions that a result may read: two if the coordinate is close to the border between
    /// them.
    fn nearest(&self, coordinate: f64, input: usize) -> Vec<usize> {
        let rounded = |x: f64| match self.nearest {
            "floor" => x.floor(),
            "ceil" => x.ceil(),
            "round_prefer_floor" => (x - 0.5).ceil(),
            _ => (x + 0.5).floor(),
        };
        let clamped = |x: f64| rounded(x).clamp(0.0, input as f64 - 1.0) as usize;
        // Coordinates of f32 are this precise.
        [coordinate, coordinate - 5e-4, coordinate + 5e-4].map(clamped).to_vec()
    }
}

#[test]
fn resizing() {
    property("resizing", 3, resize(), |(data, resize), replaced| {
        let x = data.x();
        let Some((ours, theirs)) = ways(&resize.model(data), &x, |node| node.op_is::<OptResize>())? else {
            return Ok(());
        };
        replaced.fetch_add(ours[0].replaced as usize, Ordering::Relaxed);
        let theirs = theirs.ok_or("tract can't resize this")?;
        let store = if data.dt == DatumType::F16 { 1e-3 } else { 1e-6 };
        for Ours { y, .. } in &ours {
            let allowed = |_, y: f64| if resize.mode == "nearest" { 0.0 } else { store * data.largest.max(y.abs()) };
            compare("as by tract", &f64::from_tensor(&theirs), y, allowed)?;
        }
        if data.special > 0 {
            return Ok(());
        }
        let (input, output) = (&data.shape, resize.output(&data.shape));
        let scales = resize.exact_scales(input);
        let values = f64::from_tensor(&x);
        let unchanged = |axis: usize| input[axis] == output[axis] && scales[axis] == 1.0;
        let coordinates: Vec<Vec<f64>> = (0..input.len())
            .map(|axis| match unchanged(axis) {
                true => (0..output[axis]).map(|at| at as f64).collect(),
                false => {
                    (0..output[axis]).map(|at| resize.coordinate(at, scales[axis], input[axis], output[axis])).collect()
                }
            })
            .collect();
        if resize.mode == "linear" {
            let mut expected = values;
            for (axis, coordinates) in coordinates.iter().enumerate().filter(|(axis, _)| !unchanged(*axis)) {
                let mut shape = expected.shape().to_vec();
                shape[axis] = output[axis];
                let mut to = ArrayD::zeros(shape);
                for (at, x) in coordinates.iter().enumerate() {
                    for (tap, weight) in [(x.floor(), 1.0 - x + x.floor()), (x.floor() + 1.0, x - x.floor())] {
                        let tap = tap.clamp(0.0, input[axis] as f64 - 1.0) as usize;
                        to.index_axis_mut(Axis(axis), at).scaled_add(weight, &expected.index_axis(Axis(axis), tap));
                    }
                }
                expected = to;
            }
            // Coordinates of f32 are off by up to 1e-4, and values differ by up to twice the largest.
            return compare("resized", &expected, &ours[0].y, |_, _| data.largest * (1e-3 + store));
        }
        let candidates: Vec<Vec<Vec<usize>>> = (0..input.len())
            .map(|axis| match unchanged(axis) {
                true => (0..output[axis]).map(|at| vec![at]).collect(),
                false => coordinates[axis].iter().map(|x| resize.nearest(*x, input[axis])).collect(),
            })
            .collect();
        let found = f64::from_tensor(&ours[0].y);
        for at in indices(&*output) {
            let mut read = vec![vec![]];
            for (axis, at) in at.slice().iter().enumerate() {
                let of = &candidates[axis][*at];
                read = read.iter().flat_map(|read| of.iter().map(|x| [read, &[*x][..]].concat())).collect();
            }
            if read.iter().all(|read| values[&**read] != found[&at]) {
                return Err(format!("nearest: {} at {:?}, read from none of {read:?}", found[&at], at.slice()));
            }
        }
        Ok(())
    });
}

/// Adds a node that orders axes.
fn transposed(model: Model, from: &str, order: &[usize]) -> (Model, String) {
    let perm: Vec<i64> = order.iter().map(|axis| *axis as i64).collect();
    (model.node(Node::new("Transpose").named("t").inputs(&[from]).output("t").ints("perm", &perm)), "t".into())
}

fn order() -> impl Strategy<Value = Vec<usize>> {
    Just(vec![0usize, 1, 2, 3, 4]).prop_shuffle()
}

#[test]
fn transpositions() {
    property("transpositions", 3, (data(FLOATS, false), order()), |(data, order), replaced| {
        let order: Vec<usize> = order.iter().copied().filter(|axis| *axis < data.shape.len()).collect();
        let proto = data.model(13, |model, from| transposed(model, from, &order));
        let x = data.x();
        let Some((ours, theirs)) = ways(&proto, &x, |node| node.op_is::<OptTranspose>())? else { return Ok(()) };
        replaced.fetch_add(ours[0].replaced as usize, Ordering::Relaxed);
        let expected = f64::from_tensor(&x).permuted_axes(order).as_standard_layout().to_owned();
        for Ours { y, .. } in &ours {
            compare("transposed", &expected, y, |_, _| 0.0)?;
        }
        compare("by tract", &expected, &*theirs.ok_or("tract can't transpose this")?, |_, _| 0.0)
    });
}

/// A transposition behind a resizing moves before it if the tensor grows.
#[test]
fn resizing_before_a_transposition() {
    property("resizing before a transposition", 4, (resize(), order()), |((data, resize), order), moved| {
        let order: Vec<usize> = order.iter().copied().filter(|axis| *axis < data.shape.len()).collect();
        let proto = resize.model_then(data, |model, from| transposed(model, from, &order));
        let x = data.x();
        // The last op is the resizing.
        let is_moved = |node: &TypedNode| node.op_is::<OptResize>() && node.outputs[0].successors.is_empty();
        let Some((ours, theirs)) = ways(&proto, &x, is_moved)? else { return Ok(()) };
        moved.fetch_add(ours[0].replaced as usize, Ordering::Relaxed);
        let theirs = f64::from_tensor(&*theirs.ok_or("tract can't resize this")?);
        let store = if data.dt == DatumType::F16 { 1e-3 } else { 1e-6 };
        for Ours { y, .. } in &ours {
            let allowed = |_, y: f64| if resize.mode == "nearest" { 0.0 } else { store * data.largest.max(y.abs()) };
            compare("as by tract", &theirs, y, allowed)?;
        }
        Ok(())
    });
}

/// An axis of an average pool.
#[derive(Clone, Copy, Debug)]
struct Window {
    kernel: usize,
    stride: usize,
    dilation: usize,
    pads: (usize, usize),
}

#[test]
fn average_pools() {
    let window = (1usize..=4, 1usize..=3, prop_oneof![2 => Just(1usize), 1 => 2usize..=3], (0usize..4, 0usize..4))
        .prop_map(|(kernel, stride, dilation, pads)| Window { kernel, stride, dilation, pads });
    let auto = prop_oneof![3 => Just("NOTSET"), 1 => prop::sample::select(&["SAME_UPPER", "SAME_LOWER", "VALID"][..])];
    let cases = (data(FLOATS, false), prop::collection::vec(window, 3), auto, any::<bool>(), any::<bool>());
    property("average_pools", 2, cases, |(data, windows, auto, ceil, include), replaced| {
        let (rank, mut data) = (data.shape.len() - 2, data.clone());
        data.shape[2..].iter_mut().for_each(|size| *size = (*size).max(1));
        let mut windows = windows[..rank].to_vec();
        for (window, size) in windows.iter_mut().zip(&data.shape[2..]) {
            window.pads = (window.pads.0 % window.kernel, window.pads.1 % window.kernel);
            let pads = if *auto == "NOTSET" { window.pads.0 + window.pads.1 } else { 0 };
            if (window.kernel - 1) * window.dilation >= size + pads {
                *window = Window { kernel: 1, dilation: 1, pads: (0, 0), ..*window };
            }
        }
        let of = |each: fn(&Window) -> usize| windows.iter().map(|window| each(window) as i64).collect::<Vec<_>>();
        let proto = data.model(19, |model, from| {
            let node = Node::new("AveragePool").named("p").inputs(&[from]).output("p");
            let node = node.ints("kernel_shape", &of(|w| w.kernel)).ints("strides", &of(|w| w.stride));
            let node = node.ints("dilations", &of(|w| w.dilation)).int("count_include_pad", *include as i64);
            let node = match *auto {
                "NOTSET" => {
                    node.ints("pads", &[of(|w| w.pads.0), of(|w| w.pads.1)].concat()).int("ceil_mode", *ceil as i64)
                }
                auto => node.string("auto_pad", auto),
            };
            (model.node(node), "p".into())
        });
        // The padding at the begin, the positions that are padded or not, and the windows, of each axis.
        let line = |ax: usize| {
            let (window, size) = (&windows[ax], data.shape[2 + ax]);
            let reach = (window.kernel - 1) * window.dilation + 1;
            let same = || {
                let count = size.div_ceil(window.stride);
                (count, ((count - 1) * window.stride + reach).saturating_sub(size))
            };
            match *auto {
                "VALID" => (0, size, (size - reach) / window.stride + 1),
                "SAME_UPPER" => (same().1 / 2, size + same().1, same().0),
                "SAME_LOWER" => (same().1 - same().1 / 2, size + same().1, same().0),
                _ => {
                    let padded = window.pads.0 + size + window.pads.1;
                    let steps =
                        if *ceil { (padded - reach).div_ceil(window.stride) } else { (padded - reach) / window.stride };
                    // A window begins in the input or in the padding before it.
                    let outside = *ceil && steps * window.stride >= size + window.pads.0;
                    (window.pads.0, padded, steps + 1 - outside as usize)
                }
            }
        };
        let lines: Vec<(usize, usize, usize)> = (0..rank).map(line).collect();
        let shape: Vec<usize> = data.shape[..2].iter().copied().chain(lines.iter().map(|line| line.2)).collect();
        let x = data.x();
        let values = f64::from_tensor(&x);
        let taps: Vec<usize> = windows.iter().map(|window| window.kernel).collect();
        let mut magnitudes = vec![];
        let expected = ArrayD::from_shape_fn(&*shape, |at| {
            let (mut sum, mut magnitude, mut count) = (0.0, 0.0, 0);
            for tap in indices(&*taps) {
                let (mut from, mut inside, mut padded) = (vec![at[0], at[1]], true, true);
                for (ax, window) in windows.iter().enumerate() {
                    let position = at[2 + ax] * window.stride + tap[ax] * window.dilation;
                    padded &= position < lines[ax].1;
                    let position = position.wrapping_sub(lines[ax].0);
                    inside &= position < data.shape[2 + ax];
                    from.push(position);
                }
                count += usize::from(if *include { padded } else { inside });
                if inside {
                    sum += values[&*from];
                    magnitude += values[&*from].abs();
                }
            }
            magnitudes.push(magnitude / count as f64);
            sum / count as f64
        });
        let terms = taps.iter().product::<usize>();
        let allowed = |i: usize, y: f64| tolerance(data.dt, terms + 4, magnitudes[i], y);
        let Some((ours, theirs)) = ways(&proto, &x, |node| node.op_is::<BetweenLayers>())? else { return Ok(()) };
        replaced.fetch_add(ours[0].replaced as usize, Ordering::Relaxed);
        for Ours { y, .. } in &ours {
            compare("average", &expected, y, allowed)?;
        }
        match theirs {
            // tract adds up in f16.
            Some(theirs) => compare("as by tract", &f64::from_tensor(&theirs), &ours[0].y, |i, y| match data.dt {
                DatumType::F16 => 2e-3 * (1.0 + magnitudes[i] * terms as f64),
                _ => 2.0 * allowed(i, y),
            }),
            None => Ok(()),
        }
    });
}

/// Arithmetic of f16 gives the bits of f16, whatever it is computed in.
#[test]
fn arithmetic_of_f16() {
    let op = prop::sample::select(&["Add", "Sub", "Mul", "Div", "Max", "Min"][..]);
    let cases = (data(&[DatumType::F16], false), op, 2usize..5, any::<bool>());
    property("arithmetic_of_f16", 4, cases, |(data, op, axis, exchanged), replaced| {
        let axis = axis % data.shape.len();
        let proto = data.model(9, |model, from| {
            let first = Node::new("Slice").named("s").inputs(&[from]).output("s").ints("starts", &[0]);
            let model = model.node(first.ints("ends", &[1]).ints("axes", &[axis as i64]));
            let operands = if *exchanged { ["s", from] } else { [from, "s"] };
            (model.node(Node::new(op).named("z").inputs(&operands).output("z")), "z".into())
        });
        let x = data.x();
        let Some((ours, theirs)) = ways(&proto, &x, |node| node.op_is::<OptF16Arithmetic>())? else { return Ok(()) };
        replaced.fetch_add(ours[0].replaced as usize, Ordering::Relaxed);
        // tract's extremes of NaN depend on the order of operands.
        let extreme = matches!(*op, "Max" | "Min");
        match theirs.filter(|_| data.special == 0 || !extreme) {
            Some(theirs) => {
                let expected = f64::from_tensor(&theirs);
                ours.iter().try_for_each(|Ours { y, .. }| compare("as by tract", &expected, y, |_, _| 0.0))
            }
            None => Ok(()),
        }
    });
}
