//! Activations of results, applied by a layer and by [`BetweenLayers`].
//!
//! They must be near their definition for every finite argument. For NaN, the infinities and minus
//! zero they must give the results of onnxruntime's operators.

use crate::common::proto::{Model, Node, sizes};
use crate::common::random::Random;
use crate::common::run::{Stage, load, run};
use tract_core::internal::*;
use tract_core::ops::cnn::{PaddingSpec, PoolSpec};
use tract_deconv::Isa;
use tract_deconv::Layer;
use tract_deconv::PackedFilter;
use tract_deconv::spec::{DataFormat, DeconvSpec, Direction, FilterFormat, Padding};
use tract_deconv::{Activation, BetweenLayers, OptGroupedDeconv, Pass, Step};
use tract_deconv::{Plan, PlanOptions};

const TYPES: [DatumType; 3] = [DatumType::F16, DatumType::F32, DatumType::F64];

const HARD_SWISH: Activation = Activation::Gate { scale: 1.0 / 6.0, shift: 0.5, low: 0.0, high: 1.0 };

const ACTIVATIONS: [Activation; 14] = [
    Activation::Max(0.0),
    Activation::Max(-1.5),
    Activation::Min(6.0),
    Activation::LeakyRelu(0.01),
    Activation::Elu(1.0),
    Activation::Elu(0.3),
    Activation::Sigmoid,
    Activation::Tanh,
    Activation::HardSwish,
    HARD_SWISH,
    Activation::Gate { scale: 1.0, shift: 3.0, low: 0.0, high: 6.0 },
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluTanh,
];

/// The definition of an activation.
fn exact(activation: Activation, x: f64) -> f64 {
    // This form avoids differences of nearly equal numbers.
    let sigmoid = |x: f64| if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) };
    // Avoids 0 · ∞ where the factor underflows to zero.
    let times = |x: f64, factor: f64| if factor == 0.0 { 0.0 } else { x * factor };
    match activation {
        Activation::Max(low) => x.max(low as f64),
        Activation::Min(high) => x.min(high as f64),
        Activation::LeakyRelu(alpha) => x * if x < 0.0 { alpha as f64 } else { 1.0 },
        Activation::Elu(alpha) => {
            if x < 0.0 {
                alpha as f64 * x.exp_m1()
            } else {
                x
            }
        }
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => x.tanh(),
        Activation::HardSwish => times(x, (x / 6.0 + 0.5).clamp(0.0, 1.0)),
        Activation::Gate { scale, shift, low, high } => {
            times(x, (x * scale as f64 + shift as f64).clamp(low as f64, high as f64))
        }
        Activation::Silu => times(x, sigmoid(x)),
        Activation::Gelu => times(x, libm::erfc(-x / 2f64.sqrt()) / 2.0),
        Activation::GeluTanh => times(x, sigmoid((8.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3)))),
        #[allow(unreachable_patterns)] // for variants added later
        other => panic!("no definition of {other:?}"),
    }
}

/// Compares the definitions above with values of thirty digits by mpmath.
#[test]
fn definitions() {
    for (activation, x, want) in [
        (Activation::Sigmoid, -30.0, 9.357_622_968_839_299e-14),
        (Activation::Sigmoid, 2.0, 0.880_797_077_977_882_4),
        (Activation::Tanh, 1e-9, 1e-9),
        (Activation::Tanh, -0.75, -0.635_148_952_387_287_3),
        (Activation::Silu, -20.0, -4.122_307_236_380_407e-8),
        (Activation::Gelu, -5.0, -1.433_257_859_395_969_6e-6),
        (Activation::Gelu, 0.5, 0.345_731_230_637_006_55),
        (Activation::GeluTanh, -3.0, -0.003_637_392_081_773_077),
        (Activation::Elu(1.0), -1.5, -0.776_869_839_851_570_2),
        (Activation::Elu(1.0), -1e-9, -9.999_999_995e-10),
        (Activation::HardSwish, 1.0, 2.0 / 3.0),
    ] {
        let got = exact(activation, x);
        assert!((got - want).abs() <= 1e-13 * want.abs(), "{activation:?} of {x}: {got} for {want}");
    }
}

/// Returns the largest finite number of a type, the exponent of its smallest normal one, and the
/// number of its fraction bits.
fn limits(dt: DatumType) -> (f64, i32, i32) {
    match dt {
        DatumType::F16 => (f16::MAX.to_f64(), -14, 10),
        DatumType::F32 => (f32::MAX as f64, -126, 23),
        _ => (f64::MAX, -1022, 52),
    }
}

/// Returns one unit in the last place of a number.
fn unit(dt: DatumType, y: f64) -> f64 {
    let (most, least, digits) = limits(dt);
    let exponent = if y == 0.0 { least } else { y.abs().min(most).log2().floor() as i32 };
    2f64.powi(exponent.max(least) - digits)
}

/// Returns finite numbers of a type in logarithmic steps, of both signs, and the ends of the range.
fn numbers(dt: DatumType) -> Vec<f64> {
    let positive: Vec<f64> = match dt {
        DatumType::F16 => (0..0x7c00).map(|bits| f16::from_bits(bits).to_f64()).collect(),
        DatumType::F32 => (0..0x7f80_0000u32).step_by(0x1_8001).map(|bits| f32::from_bits(bits) as f64).collect(),
        _ => (0..0x7ff0_0000_0000_0000u64).step_by(0xf_ffff_ffff_f001).map(f64::from_bits).collect(),
    };
    let (most, least, digits) = limits(dt);
    let normal = 2f64.powi(least);
    let subnormal = normal / 2f64.powi(digits);
    let ends = [most, normal, normal - subnormal, subnormal];
    positive.into_iter().chain(ends).flat_map(|x| [x, -x]).collect()
}

fn tensor(dt: DatumType, values: &[f64], shape: &[usize]) -> TractResult<Tensor> {
    let wide = Tensor::from_shape(shape, values)?;
    Ok(wide.cast_to_dt(dt)?.into_owned())
}

fn values(tensor: &Tensor) -> TractResult<Vec<f64>> {
    Ok(tensor.cast_to::<f64>()?.try_as_plain_ram()?.as_slice::<f64>()?.to_vec())
}

/// The op that applies the steps.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// A layer of one tap with identity weights applies them to its results.
    Layer,
    Between,
}

const PLACES: [Place; 2] = [Place::Layer, Place::Between];

/// The channels of the tensors that steps are applied to.
const CHANNELS: usize = 3;

/// Applies steps to values, which are distributed over the channels.
fn applied(
    place: Place,
    (dt, isa, data_format): (DatumType, Isa, DataFormat),
    steps: &[Step],
    x: &[f64],
) -> TractResult<Vec<f64>> {
    let positions = x.len().div_ceil(CHANNELS);
    let padded: Vec<f64> = x.iter().copied().chain(std::iter::repeat(0.0)).take(positions * CHANNELS).collect();
    let shape = data_format.shape(1, CHANNELS, [positions]);
    let input = tensor(dt, &padded, &shape)?;
    let output = match place {
        Place::Layer => {
            let spec = DeconvSpec {
                direction: Direction::Forward,
                data_format,
                filter_format: FilterFormat::GroupedOix,
                in_channels: CHANNELS,
                out_channels: CHANNELS,
                // A sum over channels would spread NaN to the other channels.
                group: CHANNELS,
                kernel: tvec!(1),
                strides: tvec!(1),
                dilations: tvec!(1),
                padding: Padding::Explicit { begin: tvec!(0), end: tvec!(0) },
                output_padding: tvec!(0),
            };
            let options = PlanOptions::default().with_isa(isa);
            let plan = Plan::new(&spec, &shape, None, dt, &options)?;
            let ones = tensor(dt, &[1.0; CHANNELS], &spec.filter_shape())?.into_arc_tensor();
            let packed = PackedFilter::pack(&spec, &plan.filter_layout(), &ones)?;
            Layer::new(plan.clone()).run_with_epilogue(&input, &packed, None, steps, &[])?
        }
        Place::Between => {
            let passes = steps.iter().cloned().map(Pass::Step).collect();
            between(passes, data_format, isa, input)?
        }
    };
    let mut y = values(&output)?;
    y.truncate(x.len());
    Ok(y)
}

fn between(passes: Vec<Pass>, data_format: DataFormat, isa: Isa, input: Tensor) -> TractResult<Tensor> {
    let op = BetweenLayers::new(passes, data_format, &PlanOptions::default().with_isa(isa))?;
    let mut model = TypedModel::default();
    let source = model.add_source("x", TypedFact::dt_shape(input.datum_type(), input.shape()))?;
    let outputs = model.wire_node("passes", op, &[source])?;
    model.select_output_outlets(&outputs)?;
    Ok(run(model, &[input])?.remove(0).into_tensor())
}

fn each_way(mut each: impl FnMut(Place, (DatumType, Isa, DataFormat)) -> TractResult<()>) -> TractResult<()> {
    let mut ran = 0;
    for isa in Isa::ALL.iter().copied().filter(|isa| isa.is_available()) {
        for (dt, place) in TYPES.into_iter().flat_map(|dt| PLACES.map(|place| (dt, place))) {
            for data_format in [DataFormat::Ncx, DataFormat::Nxc] {
                each(place, (dt, isa, data_format))
                    .with_context(|| format!("{place:?}, {dt:?}, {isa}, {data_format:?}"))?;
                ran += 1;
            }
        }
    }
    ensure!(ran > 0, "no instruction set is available");
    Ok(())
}

#[test]
fn finite_numbers_are_within_the_bound() -> TractResult<()> {
    each_way(|place, way| {
        let (dt, ..) = way;
        let x = numbers(dt);
        let (most, _, digits) = limits(dt);
        for activation in ACTIVATIONS {
            let y = applied(place, way, &[Step::Activation(activation)], &x)?;
            for (x, y) in x.iter().zip(&y) {
                let want = exact(activation, *x);
                let allowed = (Activation::ULPS * unit(dt, want)).max(Activation::ERROR);
                let overflows =
                    want.abs() > most * (1.0 - 2f64.powi(2 - digits)) && *y == want.signum() * f64::INFINITY;
                ensure!((y - want).abs() <= allowed || overflows, "{activation:?} of {x:e}: {y:e} for {want:e}");
            }
        }
        Ok(())
    })
}

/// The arguments that are not finite, and the two zeros.
const SPECIAL: [f64; 5] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0];

/// Returns whether two numbers are equal, including the sign of zero.
fn same(a: f64, b: f64) -> bool {
    (a.is_nan() && b.is_nan()) || (a == b && a.is_sign_negative() == b.is_sign_negative())
}

/// Special numbers in runs of every length, so that both full vectors and remainders process each
/// of them.
#[test]
fn special_numbers_are_onnxruntimes() -> TractResult<()> {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    // Measured with onnxruntime 1.32. Its operators give the same results for f16, f32 and, if they
    // support it, f64.
    let table: [(Activation, [f64; 5]); 13] = [
        (Activation::Max(0.0), [nan, inf, 0.0, -0.0, 0.0]),
        (Activation::Max(-1.5), [nan, inf, -1.5, -0.0, 0.0]),
        (Activation::Min(6.0), [nan, 6.0, -inf, -0.0, 0.0]),
        (Activation::LeakyRelu(0.25), [nan, inf, -inf, -0.0, 0.0]),
        (Activation::Elu(0.5), [nan, inf, -0.5, -0.0, 0.0]),
        (Activation::Sigmoid, [nan, 1.0, 0.0, 0.5, 0.5]),
        (Activation::Tanh, [nan, 1.0, -1.0, -0.0, 0.0]),
        (Activation::HardSwish, [nan, inf, nan, -0.0, 0.0]),
        (HARD_SWISH, [nan, inf, nan, -0.0, 0.0]),
        (Activation::Gate { scale: 1.0, shift: 3.0, low: 0.0, high: 6.0 }, [nan, inf, nan, -0.0, 0.0]),
        (Activation::Silu, [nan, inf, nan, -0.0, 0.0]),
        (Activation::Gelu, [nan, inf, nan, -0.0, 0.0]),
        (Activation::GeluTanh, [nan, inf, nan, -0.0, 0.0]),
    ];
    each_way(|place, way| {
        let (dt, ..) = way;
        let compute = if dt == DatumType::F64 { dt } else { DatumType::F32 };
        let slopes = tensor(compute, &[0.25; CHANNELS], &[CHANNELS])?.into_arc_tensor();
        let steps = table.iter().map(|(activation, want)| (Step::Activation(*activation), *want));
        let all: Vec<(Step, [f64; 5])> = steps.chain([(Step::PRelu(slopes), [nan, inf, -inf, -0.0, 0.0])]).collect();
        for len in (1..40).chain([160, 161]) {
            let x: Vec<f64> = (0..len).map(|i| SPECIAL[i % SPECIAL.len()]).collect();
            for (step, want) in &all {
                let y = applied(place, way, std::slice::from_ref(step), &x)?;
                for (i, y) in y.iter().enumerate() {
                    let want = match place {
                        // A layer's sum starts from zero, so it is never minus zero.
                        Place::Layer if i % SPECIAL.len() == 3 => want[4],
                        _ => want[i % SPECIAL.len()],
                    };
                    ensure!(same(*y, want), "{step} of {} at {i} of {len}: {y} for {want}", x[i]);
                }
            }
        }
        Ok(())
    })
}

/// A maximum ignores NaN. A window of NaN only gives the lowest finite number for f32, as in
/// onnxruntime, and minus infinity for f64.
#[test]
fn windows_skip_what_is_not_a_number() -> TractResult<()> {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for isa in Isa::ALL.iter().copied().filter(|isa| isa.is_available()) {
        for (dt, none) in [(DatumType::F32, f32::MIN as f64), (DatumType::F64, -inf)] {
            for spatial in [&[64][..], &[2, 64], &[2, 1, 64]] {
                let pairs = [
                    [nan, 1.0],
                    [1.0, nan],
                    [nan, nan],
                    [-inf, -inf],
                    [nan, -inf],
                    [inf, nan],
                    [-3.0, -inf],
                    [2.0, 5.0],
                ];
                let want = [1.0, 1.0, none, none, none, inf, -3.0, 5.0];
                let x: Vec<f64> = (0..spatial.iter().product()).map(|i| pairs[i / 2 % 8][i % 2]).collect();
                let input = tensor(dt, &x, &[&[1, 1], spatial].concat())?;
                let mut kernel: TVec<usize> = tvec!(1; spatial.len());
                kernel[spatial.len() - 1] = 2;
                let pool = PoolSpec {
                    data_format: tract_core::ops::nn::DataFormat::NCHW,
                    kernel_shape: kernel.clone(),
                    padding: PaddingSpec::Valid,
                    dilations: None,
                    strides: Some(kernel),
                    input_channels: 1,
                    output_channels: 1,
                };
                let y = values(&between(vec![Pass::MaxPool(Box::new(pool))], DataFormat::Ncx, isa, input)?)?;
                for (i, y) in y.iter().enumerate() {
                    ensure!(*y == want[i % 8], "{dt:?}, {isa}, {spatial:?}: {y} at {i} for {}", want[i % 8]);
                }
            }
        }
    }
    Ok(())
}

/// ONNX operators after a layer and before one give onnxruntime's results for NaN and the
/// infinities.
#[test]
fn operators_keep_what_is_not_a_number() -> TractResult<()> {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let operators: [(&str, Option<&str>, [f64; 3]); 11] = [
        ("Relu", None, [nan, inf, 0.0]),
        ("Clip", None, [nan, 6.0, -1.0]),
        ("HardSigmoid", None, [nan, 1.0, 0.0]),
        ("Sigmoid", None, [nan, 1.0, 0.0]),
        ("Tanh", None, [nan, 1.0, -1.0]),
        ("HardSwish", None, [nan, inf, nan]),
        ("LeakyRelu", None, [nan, inf, -inf]),
        ("Elu", None, [nan, inf, -1.0]),
        ("PRelu", None, [nan, inf, -inf]),
        ("Gelu", None, [nan, inf, nan]),
        ("Gelu", Some("tanh"), [nan, inf, nan]),
    ];
    for dt in [DatumType::F32, DatumType::F16] {
        let x: Vec<f64> = (0..42).map(|i| SPECIAL[i % 3]).collect();
        let x = tensor(dt, &x, &[1, 1, 42])?;
        for (name, approximate, want) in operators {
            let before = |model: Model, from: &str, to: &str| {
                let constant = |model: Model, name: &str, value: f64| {
                    Ok::<_, TractError>(model.initializer(name, &tensor(dt, &[value], &[])?))
                };
                let (model, inputs) = match name {
                    "Clip" => (constant(constant(model, "low", -1.0)?, "high", 6.0)?, vec![from, "low", "high"]),
                    "PRelu" => (constant(model, "slope", 0.25)?, vec![from, "slope"]),
                    _ => (model, vec![from]),
                };
                let node = Node::new(name).inputs(&inputs).output(to);
                let node = approximate.into_iter().fold(node, |node, way| node.string("approximate", way));
                Ok::<_, TractError>(model.node(node))
            };
            for place in PLACES {
                let model = Model::opset(20)
                    .input("x", dt, &sizes(x.shape()))
                    .initializer("w", &tensor(dt, &[1.0], &[1, 1, 1])?);
                let conv = |from: &str, to: &str| Node::new("Conv").inputs(&[from, "w"]).output(to);
                let proto = match place {
                    Place::Layer => before(model.node(conv("x", "up")), "up", "y")?.output("y").build(),
                    Place::Between => before(model, "x", "act")?.node(conv("act", "y")).output("y").build(),
                };
                let optimised = Stage::Optimised.of(load(&proto)?)?;
                let ours = optimised.nodes.iter().filter(|node| {
                    node.op_is::<BetweenLayers>()
                        || node.op_as::<OptGroupedDeconv>().is_some_and(|op| !op.epilogue.is_empty())
                });
                // Without a preceding layer PRelu stays tract's.
                let fused = ours.count() == 1;
                ensure!(
                    fused || (name == "PRelu" && matches!(place, Place::Between)),
                    "{name} is not fused: {optimised}"
                );
                let y = values(&run(optimised, std::slice::from_ref(&x))?[0])?;
                for (i, y) in y.iter().enumerate() {
                    ensure!(same(*y, want[i % 3]), "{name}, {place:?}, {dt:?}: {y} for {}", want[i % 3]);
                }
            }
        }
    }
    Ok(())
}

/// Runs of every length give the same results as single values.
#[test]
fn runs_of_any_length() -> TractResult<()> {
    let mut random = Random(41);
    let x: Vec<f64> = (0..100).map(|_| (random.unit() - 0.5) * 12.0).collect();
    each_way(|place, way| {
        let (dt, ..) = way;
        let x = values(&tensor(dt, &x, &[x.len()])?)?;
        for activation in ACTIVATIONS {
            let steps = [Step::Activation(activation)];
            let whole = applied(place, way, &steps, &x)?;
            for len in 1..x.len() {
                ensure!(applied(place, way, &steps, &x[..len])? == whole[..len], "{activation:?}: {len} values");
            }
        }
        Ok(())
    })
}
