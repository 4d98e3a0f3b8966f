//! Explains how each convolution of a model will be computed, and why.

use crate::layout::filter::FilterLayout;
use crate::op::bodies::for_each_node;
use crate::op::{
    Dialect, DynamicFilterDeconv, GroupedDeconv, OptFourier, OptGroupedDeconv, OptQuantisedDeconv, Output,
    QuantisedDeconv,
};
use crate::output::epilogue::Step;
use crate::plan::{Plan, PlanOptions};
use crate::settings;
use crate::spec::list;
use crate::spec::{DeconvSpec, OutputShape, Padding};
use crate::tuning;
use std::fmt;
use tract_core::internal::*;

/// One convolution of a model that this crate computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The node's name, after the names of the enclosing loops and conditions, separated by
    /// slashes.
    pub name: String,
    /// The dialect that the node came from.
    pub dialect: Dialect,
    /// The description of the convolution. `None` if sizes of the filter are known at run time only.
    pub spec: Option<DeconvSpec>,
    /// The element type.
    pub datum_type: DatumType,
    /// The input's shape, in the data format of the node.
    pub input: TVec<TDim>,
    /// The output's shape.
    pub output: TVec<TDim>,
    /// The steps that are applied to the results before they are stored.
    pub epilogue: Vec<Step>,
    /// The points of the Fourier transform that the layer runs as, which has no plan. Or the reason
    /// why it does not run as one. None for a layer that can't be one by its sizes, and in a model
    /// that is not optimised.
    pub fourier: Option<Result<usize, String>>,
    /// What is made of the integer sums, for a quantised convolution.
    pub quantised: Option<Quantised>,
    /// The plan and the sizes, if all symbols in the shapes of input and filter are known and the
    /// input is not empty. None for a quantised convolution.
    pub concrete: Option<Concrete>,
}

/// What a quantised convolution makes of its sums, and how it computes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantised {
    /// What the sums become.
    pub output: Output,
    /// The plan of the sums, if all symbols in the input's shape are known, the input is not empty and
    /// the filter is constant.
    pub plan: Option<String>,
}

/// The plan and the sizes that follow from a concrete shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Concrete {
    /// The multiply-adds of one run. Those outside the output are not counted.
    pub multiply_adds: u64,
    /// The bytes of the input.
    pub input_bytes: u64,
    /// The bytes of the filter in the model's layout.
    pub filter_bytes: u64,
    /// The bytes of the output.
    pub output_bytes: u64,
    /// The plan, with the reasons of the strategies that declined.
    pub plan: Plan,
    /// The plan for this shape alone, in words, if a filter that was packed for several shapes stands
    /// against it.
    pub without_packed_filter: Option<String>,
}

/// Explains every convolution of a model that this crate computes, in the order of evaluation.
///
/// The model may be decluttered or optimised. `symbols` are the values that shapes are planned for.
///
/// # Errors
/// A shape that a spec refuses, or a knob that forces a strategy or an instruction set that is not
/// available.
pub fn explain(model: &TypedModel, symbols: &SymbolValues) -> TractResult<Vec<Explanation>> {
    let mut explanations = vec![];
    for_each_node("", model, &mut |name, model, node| {
        let explained = |dialect, spec: Option<&DeconvSpec>, options: &PlanOptions| {
            let data = model.outlet_fact(node.inputs[0])?;
            explain_node(name, node, data, symbols, dialect, spec, options).with_context(|| name.to_string())
        };
        if let Some(op) = node.op_as::<GroupedDeconv>() {
            explanations.push(explained(op.dialect, Some(&op.spec), &settings::complete(&op.options)?)?);
        } else if let Some(op) = node.op_as::<OptGroupedDeconv>() {
            let data = op.data_fact(&model.node_input_facts(node.id)?)?;
            let plain = explain_node(name, node, &data, symbols, op.dialect, Some(&op.spec), &op.options)
                .with_context(|| name.to_string())?;
            let fourier = op.not_fourier.clone().map(Err);
            explanations.push(Explanation { epilogue: op.epilogue.clone(), fourier, ..plain });
        } else if let Some(op) = node.op_as::<OptFourier>() {
            // It has no plan.
            let (plain, spec) = (explained(op.dialect(), None, op.options())?, Some(op.spec().clone()));
            explanations.push(Explanation { spec, fourier: Some(Ok(op.points())), ..plain });
        } else if let Some(op) = node.op_as::<QuantisedDeconv>() {
            let data = evaluated(model.outlet_fact(node.inputs[0])?, symbols);
            let filter = &model.outlet_fact(node.inputs[1])?.konst;
            let options = settings::complete(&op.options)?;
            let sums = filter.as_ref().map(|filter| op.sums(filter, &options)).transpose()?;
            let plan = sums.map_or(Ok(None), |sums| sums.plan(&data, false)).with_context(|| name.to_string())?;
            let quantised = Some(Quantised { output: op.output.clone(), plan });
            let (plain, spec) = (explained(op.dialect, None, &op.options)?, Some(op.spec.clone()));
            explanations.push(Explanation { spec, quantised, ..plain });
        } else if let Some(op) = node.op_as::<OptQuantisedDeconv>() {
            let data = evaluated(model.outlet_fact(node.inputs[0])?, symbols);
            let plan = op.plan(&data).with_context(|| name.to_string())?;
            let quantised = Some(Quantised { output: op.output().clone(), plan });
            let (plain, spec) = (explained(op.dialect, None, &PlanOptions::default())?, Some(op.spec().clone()));
            explanations.push(Explanation { spec, quantised, ..plain });
        } else if let Some(op) = node.op_as::<DynamicFilterDeconv>() {
            let filter = &model.outlet_fact(node.inputs[1])?.shape;
            let sizes = filter.iter().map(|dim| dim.eval(symbols).to_usize().ok()).collect::<Option<TVec<usize>>>();
            let resolved = sizes.map(|sizes| op.resolved(&sizes)).transpose().with_context(|| name.to_string())?;
            // The filter is packed in each run.
            let options = op.options.clone().with_transformed_bytes(0);
            explanations.push(explained(op.dialect, resolved.as_ref().map(|op| &op.spec), &options)?);
        }
        Ok(())
    })?;
    Ok(explanations)
}

/// Returns a fact with the values of symbols in its shape.
fn evaluated(fact: &TypedFact, symbols: &SymbolValues) -> TypedFact {
    fact.datum_type.fact(fact.shape.iter().map(|dim| dim.eval(symbols)).collect::<TVec<TDim>>())
}

fn explain_node(
    name: &str,
    node: &TypedNode,
    data: &TypedFact,
    symbols: &SymbolValues,
    dialect: Dialect,
    spec: Option<&DeconvSpec>,
    options: &PlanOptions,
) -> TractResult<Explanation> {
    let shape = |fact: &TypedFact| evaluated(fact, symbols).shape.to_tvec();
    let (input, output) = (shape(data), shape(&node.outputs[0].fact));
    let requested = match spec.map(|spec| &spec.padding) {
        Some(Padding::OutputShape { shape: OutputShape::Dims(dims) | OutputShape::Input(dims), .. }) => {
            Some(dims.iter().map(|dim| dim.eval(symbols).as_i64()).collect::<Option<TVec<i64>>>())
        }
        _ => None,
    };
    let sizes = input.iter().map(|dim| dim.to_usize().ok().filter(|d| *d > 0)).collect::<Option<TVec<usize>>>();
    let concrete = match (spec, sizes, requested) {
        (None, ..) | (_, None, _) | (.., Some(None)) => None,
        (Some(spec), Some(sizes), requested) => {
            let requested = requested.flatten();
            let plan = tuning::plan(spec, &sizes, requested.as_deref(), data.datum_type, options)?;
            let (plan, without_packed_filter) = match &options.layout {
                Some(layout) => {
                    let options = options.clone().with_layout(None);
                    let free = Plan::new(spec, &sizes, requested.as_deref(), data.datum_type, &options)?;
                    beside_packed_filter(plan, free, layout)
                }
                None => (plan, None),
            };
            let bytes = |shape: &[usize]| {
                shape.iter().fold(data.datum_type.size_of() as u64, |bytes, dim| bytes.saturating_mul(*dim as u64))
            };
            Some(Concrete {
                multiply_adds: plan.problem().multiply_adds(),
                input_bytes: bytes(&sizes),
                filter_bytes: bytes(&spec.filter_shape()),
                output_bytes: bytes(&plan.problem().output_shape()),
                plan,
                without_packed_filter,
            })
        }
    };
    Ok(Explanation {
        name: name.to_string(),
        dialect,
        spec: spec.cloned(),
        datum_type: data.datum_type,
        input,
        output,
        epilogue: vec![],
        fourier: None,
        quantised: None,
        concrete,
    })
}

/// Returns what explains a plan for a packed filter: the same plan for any filter, whose reasons compare
/// costs, or else the plan and what stands against a better one.
fn beside_packed_filter(plan: Plan, free: Plan, layout: &FilterLayout) -> (Plan, Option<String>) {
    if free.to_string() == plan.to_string() {
        // The words leave out in which layout tile registers read a filter.
        return (if free.filter_layout() == plan.filter_layout() { free } else { plan }, None);
    }
    let cost = |plan: &Plan| plan.cost().map_or("unknown".to_string(), |cost| cost.to_string());
    let better = format!(
        "for this shape alone {free}, at an estimated cost of {} instead of {}; the filter is packed once for all shapes, \
         in {layout}",
        cost(&free),
        cost(&plan)
    );
    (plan, Some(better))
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let shape = |dims: &[TDim]| dims.iter().map(|dim| dim.to_string()).collect::<Vec<_>>().join(",");
        writeln!(f, "{} ({})", self.name, self.dialect)?;
        match &self.spec {
            Some(spec) => writeln!(f, "  {spec}")?,
            None => writeln!(f, "  a filter whose sizes are known at run time only")?,
        }
        writeln!(f, "  {:?}: [{}] -> [{}]", self.datum_type, shape(&self.input), shape(&self.output))?;
        if !self.epilogue.is_empty() {
            writeln!(f, "  then {}", list(&self.epilogue, ", "))?;
        }
        match &self.fourier {
            Some(Ok(points)) => return write!(f, "  runs as a Fourier transform of {points} points"),
            Some(Err(reason)) => writeln!(f, "  not a Fourier transform: {reason}")?,
            None => {}
        }
        if let Some(quantised) = &self.quantised {
            writeln!(f, "  quantised, to {}", quantised.output)?;
            if let Some(plan) = &quantised.plan {
                return write!(f, "  runs {plan}");
            }
        }
        let Some(concrete) = &self.concrete else {
            return f.write_str(match &self.spec {
                _ if self.input.contains(&0.to_dim()) => "  nothing to compute",
                Some(_) => "  planned at run time, once per shape",
                None => "  planned at run time, once per shape of input and filter",
            });
        };
        writeln!(
            f,
            "  {} multiply-adds, {} bytes in, {} of weights, {} out",
            concrete.multiply_adds, concrete.input_bytes, concrete.filter_bytes, concrete.output_bytes
        )?;
        write!(f, "  runs {}\n  precision {}", concrete.plan, concrete.plan.explain_precision())?;
        if let Some(better) = &concrete.without_packed_filter {
            write!(f, "\n  {better}")?;
        }
        for (strategy, reason) in concrete.plan.declined() {
            write!(f, "\n  not {strategy}: {reason}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use tract_onnx::pb::tensor_proto::DataType;

    #[test]
    fn explains_decluttered_and_optimised_models() -> TractResult<()> {
        let proto = model(
            vec![info("x", DataType::Float, &["N", "1", "3"])],
            vec![counting("w", &[1, 2, 3])],
            vec![node("", "ConvTranspose", &["x", "w"], &[ints("strides", &[2]), ints("pads", &[1, 0])])],
        );
        let decluttered = load(&proto)?;
        let n = decluttered.symbols.sym("N");
        let four = SymbolValues::default().with(&n, 4);
        for model in [decluttered.clone(), decluttered.into_optimized()?] {
            let unknown = explain(&model, &SymbolValues::default())?;
            assert_eq!(unknown[0].concrete, None);
            assert!(unknown[0].to_string().contains("planned at run time"), "{}", unknown[0]);
            let known = explain(&model, &four)?;
            assert_eq!((known.len(), &*known[0].name, known[0].dialect), (1, "node", Dialect::Onnx));
            let concrete = known[0].concrete.as_ref().unwrap();
            // per channel: 3 inputs by 3 taps, less the one that is cropped
            assert_eq!(concrete.multiply_adds, 4 * 2 * 8);
            assert_eq!((concrete.input_bytes, concrete.filter_bytes, concrete.output_bytes), (48, 24, 192));
            let text = known[0].to_string();
            let line =
                "transposed 1-d, NCX data, IOX filter, 1 to 2 channels in 1 group, kernel 3, strides 2, pads 1 and 0";
            assert!(text.contains(line), "{text}");
            assert!(text.contains(&format!("runs {}", concrete.plan)), "{text}");
        }
        Ok(())
    }

    #[test]
    fn a_filter_of_open_sizes_is_listed() -> TractResult<()> {
        let proto = model(
            vec![info("x", DataType::Float, &["1", "4", "9", "8"]), info("w", DataType::Float, &["6", "4", "K", "3"])],
            vec![],
            vec![node("", "Conv", &["x", "w"], &[ints("strides", &[2, 1])])],
        );
        let decluttered = load(&proto)?;
        let k = decluttered.symbols.sym("K");
        for model in [decluttered.clone(), decluttered.into_optimized()?] {
            let open = explain(&model, &SymbolValues::default())?;
            let [only] = &*open else { bail!("{} layers", open.len()) };
            assert_eq!((&*only.name, only.dialect, &only.spec, &only.concrete), ("node", Dialect::Onnx, &None, &None));
            let text = only.to_string();
            assert!(text.contains("a filter whose sizes are known at run time only"), "{text}");
            assert!(text.contains("planned at run time, once per shape of input and filter"), "{text}");
            // With the size, it is planned as the run will.
            let known = explain(&model, &SymbolValues::default().with(&k, 5))?;
            assert_eq!(known[0].spec.as_ref().map(|spec| &*spec.kernel), Some(&[5, 3][..]));
            assert_eq!(known[0].concrete.as_ref().map(|known| known.multiply_adds), Some(3 * 6 * 15 * 4 * 6));
        }
        Ok(())
    }

    /// A filter that is packed for several shapes: for one of them another strategy may be better.
    #[test]
    fn a_packed_filter_is_explained() -> TractResult<()> {
        let proto = model(
            vec![info("x", DataType::Float, &["1", "32", "H", "W"])],
            vec![counting("w", &[32, 32, 3, 3])],
            vec![node("", "Conv", &["x", "w"], &[ints("pads", &[1, 1, 1, 1])])],
        );
        let open = load(&proto)?.into_optimized()?;
        let [h, w] = ["H", "W"].map(|symbol| open.symbols.sym(symbol));
        let mut seen = [0, 0];
        for size in [1, 2, 4, 8, 16, 48, 192] {
            let explained = explain(&open, &SymbolValues::default().with(&h, size).with(&w, size))?;
            let concrete = explained[0].concrete.as_ref().context("a plan")?;
            let text = explained[0].to_string();
            let names_packing = concrete.plan.declined().iter().any(|(_, why)| why.contains("the filter is packed in"));
            match &concrete.without_packed_filter {
                // The plan is the best for this shape: costs are compared.
                None => assert!(!names_packing, "{text}"),
                Some(better) => assert!(text.contains(better) && better.contains("instead of"), "{text}"),
            }
            seen[usize::from(concrete.without_packed_filter.is_some())] += 1;
        }
        assert!(seen[0] > 0, "{seen:?}");
        Ok(())
    }
}
