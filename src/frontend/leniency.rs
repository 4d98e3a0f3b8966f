//! Older forms of operators, which tract's importer refuses.

use super::{Built, built_by_tract};
use tract_core::ops::nn::resize::{CoordTransformer, Interpolator, Nearest, Resize};
use tract_hir::infer::*;
use tract_hir::internal::*;
use tract_onnx::model::{Onnx, ParsingContext};
use tract_onnx::pb::{AttributeProto, NodeProto, attribute_proto};

/// Lets tract's importer read older forms of ONNX operators that it refuses.
///
/// | operator | opsets | read as |
/// |---|---|---|
/// | Squeeze without axes | below 13 | Squeeze of opset 13, which drops all axes of size 1 |
/// | Upsample | from 7 | Resize with asymmetric coordinates; the nearest element is that at or before them |
///
/// What tract reads by itself is not changed. Other operators that tract refuses stay refused.
///
/// ```
/// use tract_deconv::{WithConv, WithDeconv, WithLeniency};
///
/// let onnx = tract_onnx::onnx().with_deconv().with_conv().with_leniency();
/// ```
pub trait WithLeniency {
    /// Registers the older forms.
    fn enable_leniency(&mut self);

    /// Returns the framework with the older forms registered.
    fn with_leniency(self) -> Self
    where
        Self: Sized;
}

impl WithLeniency for Onnx {
    fn enable_leniency(&mut self) {
        self.op_register.insert("Squeeze", squeeze);
        self.op_register.insert("Upsample", upsample);
    }

    fn with_leniency(mut self) -> Onnx {
        self.enable_leniency();
        self
    }
}

/// The first opset whose Squeeze tract reads without axes.
const SQUEEZE_WITHOUT_AXES: i64 = 13;
/// The first opset whose Upsample has its scales as an input.
const SCALES_AS_INPUT: i64 = 9;
/// The opset of Resize whose inputs are those of Upsample.
const RESIZE_OF_TWO_INPUTS: i64 = 10;
/// The largest scale in an attribute, so that sizes do not overflow.
const LARGEST_SCALE: f32 = 65536.0;

fn is_of_onnx(node: &NodeProto) -> bool {
    matches!(&*node.domain, "" | "ai.onnx")
}

/// Builds a node as tract would in a model of another opset.
fn built_by_tract_in_opset(ctx: &ParsingContext, opset: i64, node: &NodeProto) -> Built {
    let ctx = ParsingContext { onnx_operator_set_version: opset, ..ctx.clone() };
    built_by_tract(&ctx, node)
}

fn squeeze(ctx: &ParsingContext, node: &NodeProto) -> Built {
    let has_axes = node.attribute.iter().any(|attribute| attribute.name == "axes");
    if !is_of_onnx(node) || has_axes || ctx.onnx_operator_set_version >= SQUEEZE_WITHOUT_AXES {
        return built_by_tract(ctx, node);
    }
    built_by_tract_in_opset(ctx, SQUEEZE_WITHOUT_AXES, node)
}

fn upsample(ctx: &ParsingContext, node: &NodeProto) -> Built {
    if !is_of_onnx(node) {
        return built_by_tract(ctx, node);
    }
    let mode = Interpolator::parse(node.get_attr_opt("mode")?.unwrap_or("nearest"))?;
    ensure!(mode != Interpolator::Cubic, "upsample: mode=cubic, nearest or linear is needed");
    if ctx.onnx_operator_set_version >= SCALES_AS_INPUT {
        let mut resize = NodeProto { op_type: "Resize".into(), ..node.clone() };
        resize.attribute.push(AttributeProto {
            name: "nearest_mode".into(),
            r#type: attribute_proto::AttributeType::String as i32,
            s: Nearest::Floor.as_str().into(),
            ..AttributeProto::default()
        });
        return built_by_tract_in_opset(ctx, RESIZE_OF_TWO_INPUTS, &resize);
    }
    let scales: Vec<f32> = node.get_attr_vec("scales")?;
    let known = scales.iter().all(|scale| (1.0..=LARGEST_SCALE).contains(scale));
    ensure!(known, "upsample: scales={scales:?}, each is within 1 and {LARGEST_SCALE}");
    Ok((expand(Upsample { mode, scales: tensor1(&scales) }), vec![]))
}

/// Upsample of opset 7, whose scales are an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Upsample {
    mode: Interpolator,
    /// One per axis.
    scales: Tensor,
}

impl Upsample {
    /// The operator with the scales as its second input.
    fn resize(&self) -> Resize {
        Resize {
            coord_transformer: CoordTransformer::Asymmetric,
            interpolator: self.mode.clone(),
            nearest: Nearest::Floor,
            optional_scales_input: Some(1),
            optional_sizes_input: None,
        }
    }
}

impl Expansion for Upsample {
    fn name(&self) -> StaticName {
        "Upsample".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        s: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 1)?;
        check_output_arity(outputs, 1)?;
        s.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        s.equals(&inputs[0].rank, self.scales.len() as i64)?;
        s.equals(&outputs[0].rank, self.scales.len() as i64)?;
        s.given(&inputs[0].shape, move |s, shape| {
            let sizes = self.resize().compute_output_shape(&shape, Some(&self.scales), None)?;
            s.equals(&outputs[0].shape, sizes)
        })
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let scales = model.add_const(format!("{prefix}.scales"), self.scales.clone())?;
        model.wire_node(prefix, self.resize(), &[inputs[0], scales])
    }
}
