//! tract's own dump and profile of an optimised model show our operator with the model's names, its
//! strategy and its cost.

mod common;

use common::proto::{Dim, Model, Node};
use common::random::Random;
use common::run::{Stage, load, run};
use serde_json::{Value, json};
use std::path::Path;
use tract_core::internal::*;
use tract_core::ops::konst::Const;
use tract_deconv::{GroupedDeconv, OptFourier, OptGroupedDeconv, Strategy, WithDeconv, explain};
use tract_libcli::annotations::Annotations;
use tract_libcli::export::{GraphPerfInfo, audit_json};
use tract_libcli::profile::{BenchLimits, extract_costs, profile};
use tract_onnx::prelude::{Framework, InferenceModelExt};

/// Returns a deconvolution named `up`, with a bias, a residual and an activation, for an input of
/// this many rows.
fn model(rows: Dim) -> TractResult<TypedModel> {
    let dt = DatumType::F32;
    let proto = Model::opset(13)
        .input("x", dt, &[Dim::from(1), Dim::from(6), rows, Dim::from(7)])
        .initializer("w", &Random(1).tensor(dt, &[6, 6, 3, 3]))
        .initializer("b", &Random(2).tensor(dt, &[6]))
        .node(Node::new("ConvTranspose").named("up").inputs(&["x", "w", "b"]).ints("pads", &[1, 1, 1, 1]).output("s"))
        .node(Node::new("Add").named("skip").inputs(&["x", "s"]).output("t"))
        .node(Node::new("Relu").named("act").inputs(&["t"]).output("y"))
        .output("y")
        .build();
    load(&proto)
}

/// Returns the nodes of tract's dump, as JSON.
fn dumped(model: &TypedModel) -> TractResult<Vec<Value>> {
    let mut annotations = Annotations::from_model(model)?;
    extract_costs(&mut annotations, model, &SymbolValues::default())?;
    let mut text = vec![];
    audit_json(model, &annotations, &mut text)?;
    let dump: Value = serde_json::from_slice(&text)?;
    Ok(dump["nodes"].as_array().context("nodes")?.clone())
}

fn ours<'a>(nodes: &'a [Value], op: &str) -> TractResult<&'a Value> {
    nodes.iter().find(|node| node["op"] == op).with_context(|| format!("{op} in {nodes:?}"))
}

#[test]
fn a_dump_shows_operator_strategy_and_cost() -> TractResult<()> {
    let described = "onnx: transposed 2-d, NCX data, IOX filter, 6 to 6 channels in 1 group, kernel 3x3, strides 1x1, \
                     pads 1,1 and 1,1";
    // Per pair of channels, three taps per axis at every position, but for the crops at the ends:
    // 3·5-2 rows by 3·7-2 columns.
    let cost = json!({"FMA(F32)": (36 * 13 * 19).to_string(), "Params(F32)": "324"});
    let decluttered = Stage::Decluttered.of(model(Dim::from(5))?)?;
    let nodes = dumped(&decluttered)?;
    let node = ours(&nodes, "GroupedDeconv")?;
    assert_eq!((&node["name"], &node["info"], &node["cost"]), (&json!("up"), &json!([described]), &cost));

    let optimised = Stage::Optimised.of(decluttered)?;
    let nodes = dumped(&optimised)?;
    let node = ours(&nodes, "OptGroupedDeconv")?;
    assert_eq!((&node["name"], &node["cost"]), (&json!("up"), &cost));
    let info: Vec<&str> = node["info"].as_array().context("lines")?.iter().filter_map(Value::as_str).collect();
    let [spec, tail, plan] = info[..] else { bail!("info: {info:?}") };
    assert_eq!((spec, tail), (described, "then Add, Max(0.0)"));
    assert!(Strategy::ALL.iter().any(|strategy| plan.starts_with(strategy.name())), "{plan}");
    let explained = explain(&optimised, &SymbolValues::default())?.remove(0).to_string();
    assert!(explained.contains("then Add, Max(0.0)") && explained.contains(plan), "{explained}");
    Ok(())
}

#[test]
fn an_open_shape_is_costed_over_its_symbols_and_planned_when_it_runs() -> TractResult<()> {
    let model = Stage::Optimised.of(model(Dim::from("H"))?)?;
    let nodes = dumped(&model)?;
    let node = ours(&nodes, "OptGroupedDeconv")?;
    // Nine taps at each position of the input.
    assert_eq!(node["cost"]["FMA(F32)"], format!("{}*H", 36 * 9 * 7));
    let last = |node: &Value| node["info"].as_array().and_then(|lines| lines.last()).map(|line| line.to_string());
    let before = last(node).context("a line")?;
    assert!(before.contains("planned at run time"), "{before}");
    run(model.clone(), &[Random(3).tensor(DatumType::F32, &[1, 6, 5, 7])])?;
    let nodes = dumped(&model)?;
    let after = last(ours(&nodes, "OptGroupedDeconv")?).context("a line")?;
    assert!(Strategy::ALL.iter().any(|strategy| after.contains(strategy.name())), "{after}");
    Ok(())
}

/// Returns the names of the deconvolutions in a model file, sorted.
fn names_in_file(path: &Path) -> TractResult<Vec<String>> {
    let graph = tract_onnx::onnx().proto_model_for_path(path)?.graph.context("a graph")?;
    let ours = graph.node.iter().filter(|node| node.op_type == "ConvTranspose");
    let mut names: Vec<String> = ours.map(|node| node.name.clone()).collect();
    names.sort();
    Ok(names)
}

#[test]
fn names_survive() -> TractResult<()> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let mut seen = 0;
    for name in ["dcgan_small", "denoiser", "istft", "unet_symbolic", "upscale4", "vocoder"] {
        let path = models.join(name).join("model.onnx");
        let in_file = names_in_file(&path)?;
        assert!(in_file.iter().all(|name| !name.is_empty()), "{name}: {in_file:?}");
        let model = tract_onnx::onnx().with_deconv().model_for_path(&path)?.into_typed()?;
        let labels = |model: &TypedModel| -> Vec<Option<String>> {
            model.outputs.iter().map(|outlet| model.outlet_label(*outlet).map(String::from)).collect()
        };
        let outputs = labels(&model);
        for stage in Stage::ALL {
            let model = stage.of(model.clone())?;
            let ours = model
                .nodes
                .iter()
                .filter(|n| n.op_is::<GroupedDeconv>() || n.op_is::<OptGroupedDeconv>() || n.op_is::<OptFourier>());
            let mut names: Vec<String> = ours.map(|node| node.name.clone()).collect();
            names.sort();
            assert_eq!(names, in_file, "{name}, {stage:?}");
            assert_eq!(labels(&model), outputs, "{name}, {stage:?}");
        }
        seen += in_file.len();
    }
    assert!(seen >= 10, "{seen} deconvolutions");
    Ok(())
}

#[test]
fn a_profile_times_our_operator() -> TractResult<()> {
    let model = Stage::Optimised.of(model(Dim::from(5))?)?;
    let runnable = model.clone().into_runnable()?;
    let mut annotations = Annotations::from_model(&model)?;
    let input = Random(3).tensor(DatumType::F32, &[1, 6, 5, 7]).into_tvalue();
    let inputs = tract_libcli::tensor::RunTensors { sources: vec![tvec!(input)], streaming_input_len: None };
    let limits = BenchLimits { max_loops: 2, warmup_loops: 0, ..BenchLimits::default() };
    let runnable: Arc<dyn tract_core::runtime::Runnable> = Arc::new(runnable);
    profile(&runnable, &limits, &mut annotations, &inputs, None, false)?;
    let info = serde_json::to_value(GraphPerfInfo::from(&model, &annotations))?;
    let nodes = info["nodes"].as_array().context("nodes")?;
    let timed: Vec<&Value> = nodes.iter().filter(|node| node["op_name"] == "OptGroupedDeconv").collect();
    assert_eq!((timed.len(), &timed[0]["node_name"]), (1, &json!("up")));
    assert!(timed[0]["secs_per_iter"].as_f64().is_some_and(|seconds| seconds > 0.0), "{timed:?}");
    // The folded nodes are gone.
    let others = model.nodes.iter().filter(|node| !node.op_is::<Const>()).count();
    assert_eq!(others, 2, "{model}");
    Ok(())
}

/// Each type of `src/op` that is an operator is in the list by which a profile tells ours from tract's.
#[test]
fn every_operator_of_the_plugin_is_listed() {
    fn operators(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                operators(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(path).unwrap();
            let types = text.split("\nimpl TypedOp for ").skip(1).filter_map(|rest| rest.split_once(' '));
            found.extend(types.map(|(name, _)| name.to_string()));
        }
    }
    let op = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/op");
    let mut found = vec![];
    operators(&op, &mut found);
    assert!(found.len() >= 19, "{found:?}");
    let module = std::fs::read_to_string(op.join("mod.rs")).unwrap();
    let (_, list) = module.split_once("is_one_of!(\n").unwrap();
    let (list, _) = list.split_once("    )\n").unwrap();
    for name in found {
        // it exists with the feature `pulse` only
        assert!(list.contains(&format!(" {name},")) || name == "ScaledSums", "{name} is not listed");
    }
    assert!(!tract_deconv::op::is_of_plugin(&Const::new(tensor0(1f32).into_arc_tensor()).unwrap()));
}
