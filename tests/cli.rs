//! The program `tract-deconv`, run as users run it.
#![cfg(feature = "cli")]

mod common;

use common::proto::{Dim, Model, Node, sizes};
use prost::Message;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;
use tract_core::internal::*;
use tract_deconv::Isa;
use tract_onnx::pb::ModelProto;
use tract_onnx::pb::tensor_proto::DataType;

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tract-deconv"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null()).env_remove("RUST_LOG");
    command
}

/// The result of a run of the program.
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Ended {
        Ended {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ended {
    #[track_caller]
    fn with(self, code: i32) -> Ended {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        // Panics must be reported as a chain of causes, like other errors.
        assert!(!self.err.contains("RUST_BACKTRACE"), "{}", self.err);
        self
    }

    #[track_caller]
    fn says(self, words: &[&str]) -> Ended {
        for word in words {
            assert!(self.out.contains(word), "no {word:?} in:\n{}", self.out);
        }
        self
    }

    #[track_caller]
    fn complains(self, words: &[&str]) -> Ended {
        for word in words {
            assert!(self.err.contains(word), "no {word:?} in:\n{}", self.err);
        }
        self
    }
}

fn tract_deconv<A: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = A>) -> Ended {
    program().args(args).output().unwrap().into()
}

/// Returns a folder with a model.onnx.
fn folder(model: ModelProto) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.onnx"), model.encode_to_vec()).unwrap();
    folder
}

fn path(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

/// Returns `y = ConvTranspose(x, w)` with four channels to three, kernel 3×3 and stride 2.
fn up(shape: &[Dim], attributes: impl Fn(Node) -> Node) -> ModelProto {
    let weights: Vec<f32> = (0..4 * 3 * 9).map(|i| ((i * 37 % 19) as f32 - 9.0) / 9.0).collect();
    let node = Node::new("ConvTranspose").named("up").inputs(&["x", "w"]).output("y").ints("strides", &[2, 2]);
    Model::default()
        .initializer("w", &Tensor::from_shape(&[4, 3, 3, 3], &weights).unwrap())
        .input("x", DatumType::F32, shape)
        .node(attributes(node))
        .output("y")
        .build()
}

fn plain() -> ModelProto {
    up(&sizes(&[1, 4, 5, 6]), |node| node)
}

fn symbolic() -> ModelProto {
    up(&["batch".into(), 4.into(), "height".into(), 6.into()], |node| node)
}

/// Returns an npy file.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.into_bytes());
    file.extend(data);
    file
}

fn ramp(values: usize) -> Vec<u8> {
    (0..values).flat_map(|i| (i as f32 / values as f32).to_le_bytes()).collect()
}

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models")
}

#[test]
fn help_has_an_example_for_each_command() {
    for command in ["run", "bench", "explain"] {
        tract_deconv([command, "--help"]).with(0).says(&["Example: tract-deconv", command]);
    }
    tract_deconv(["--help"]).with(0).says(&["Exit code", "run", "bench", "explain"]);
}

#[test]
fn measured_choices_are_kept_in_a_file() {
    let folder = folder(plain());
    let (model, file) = (path(&folder, "model.onnx"), path(&folder, "choices"));
    tract_deconv(["explain", &model, "--tune"]).with(0).says(&["measured: "]);
    let tune = format!("--tune={file}");
    let first = tract_deconv(["explain", &model, &tune]).with(0).says(&["measured: "]);
    let choices = std::fs::read_to_string(&file).unwrap();
    assert_eq!(choices.lines().count(), 1, "{choices}");
    // another process plans the same, by the times of the first one
    let again = tract_deconv(["explain", &model, &tune]).with(0);
    assert_eq!(again.out, first.out);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), choices);
    tract_deconv(["run", &model, &tune]).with(0);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), choices);
}

#[test]
fn usage_errors_exit_with_2() {
    let model = folder(plain());
    let model = path(&model, "model.onnx");
    let cases: [&[&str]; 19] = [
        &["run", &model, "--input-shape", "z=1x4x5x6"],
        &["run", &model, "--input-shape", "1x4x5x7"],
        &["run", &model, "--input-shape", "1x4x5"],
        &["run", &model, "--input-shape", "1x4xfour"],
        &["run", &model, "--input-shape", "1x4x5x6", "--input-shape", "x=1x4x5x6"],
        &["run", &model, "--threads", "257"],
        &["bench", &model, "--json", "same", "--plot", "same"],
        &[],
        &["walk", &model],
        &["run"],
        &["run", &model, "--set", "N"],
        &["run", &model, "--set", "N=-1"],
        &["run", &model, "--set", "N=2"],
        &["run", &model, "--tolerance", "tight"],
        &["run", &model, "--input", "z=z.npy"],
        &["run", &model, "--input", "x.npy"],
        &["bench", &model, "--seconds", "0"],
        &["bench", &model, "--seconds", "nan"],
        &["bench", &model, "--threads", "0"],
    ];
    for case in cases {
        let ended = tract_deconv(case).with(2);
        assert!(ended.out.is_empty() && !ended.err.is_empty(), "{case:?}");
    }
}

#[test]
fn own_models_match_their_files() {
    for name in ["dcgan_small", "denoiser", "istft"] {
        let io = models().join(name).join("io.npz").display().to_string();
        let model = models().join(name).display().to_string();
        tract_deconv(["run", &model, "--check", &io]).with(0).says(&["worst relative", "ok", "io.npz"]);
    }
}

#[test]
fn random_inputs_are_announced_and_repeat() {
    let model = folder(plain());
    let run = |seed: &str, name: &str| {
        let file = path(&model, name);
        tract_deconv(["run", &path(&model, "model.onnx"), "--seed", seed, "--output", &file]).with(0).says(&[
            "input x 1×4×5×6 F32: random, seed",
            "1×3×11×13",
            "written",
        ]);
        // Zip files contain dates, so compare through --check.
        file
    };
    let (first, other) = (run("1", "first.npz"), run("2", "other.npz"));
    let check = |seed: &str, against: &str| {
        // --input overrides the inputs of the archive.
        let x = path(&model, "x.npz");
        tract_deconv(["run", &path(&model, "model.onnx"), "--seed", seed, "--output", &x]).with(0);
        tract_deconv(["run", &path(&model, "model.onnx"), "--input", &x, "--check", against])
    };
    check("1", &first).with(0).says(&["0.00e0"]);
    check("1", &other).with(1).complains(&["output y", "of its scale"]);
}

#[test]
fn check_takes_the_inputs_of_its_archive_and_fails_past_the_tolerance() {
    let model = folder(plain());
    let (onnx, good) = (path(&model, "model.onnx"), path(&model, "good.npz"));
    tract_deconv(["run", &onnx, "--seed", "9", "--output", &good]).with(0);
    tract_deconv(["run", &onnx, "--check", &good, "--tolerance", "0"]).with(0).says(&["good.npz", "ok"]);

    let other = folder(up(&sizes(&[1, 4, 5, 6]), |node| node.ints("pads", &[0, 0, 1, 1])));
    tract_deconv(["run", &path(&other, "model.onnx"), "--check", &good])
        .with(1)
        .says(&["got 1×3×10×12 F32, the reference is 1×3×11×13 F32"])
        .complains(&["check against", "output y"]);

    let shifted =
        folder(up(&sizes(&[1, 4, 5, 6]), |node| node.ints("pads", &[1, 1, 0, 0]).ints("output_padding", &[1, 1])));
    let onnx = path(&shifted, "model.onnx");
    tract_deconv(["run", &onnx, "--check", &good]).with(1).says(&["too far"]).complains(&["tolerance 1e-4"]);
    tract_deconv(["run", &onnx, "--check", &good, "--tolerance", "10"]).with(0);
}

#[test]
fn check_fails_when_an_output_has_no_reference() {
    let model = folder(plain());
    std::fs::write(model.path().join("x.npy"), npy("<f4", "(1, 4, 5, 6)", &ramp(120))).unwrap();
    let (onnx, file) = (path(&model, "model.onnx"), path(&model, "io.npz"));
    let renamed = folder(
        Model::default()
            .input("x", DatumType::F32, &sizes(&[1, 4, 5, 6]))
            .node(Node::new("Relu").inputs(&["x"]).output("z"))
            .output("z")
            .build(),
    );
    tract_deconv(["run", &path(&renamed, "model.onnx"), "--output", &file]).with(0);
    tract_deconv(["run", &onnx, "--check", &file]).with(1).says(&["no array out__y"]).complains(&["no array out__y"]);
}

#[test]
fn every_type_goes_in_and_comes_out() {
    let types = [
        (DatumType::F32, "<f4", 4),
        (DatumType::F16, "<f2", 2),
        (DatumType::F64, "<f8", 8),
        (DatumType::I8, "|i1", 1),
        (DatumType::I16, "<i2", 2),
        (DatumType::I32, "<i4", 4),
        (DatumType::I64, "<i8", 8),
        (DatumType::U8, "|u1", 1),
        (DatumType::U16, "<u2", 2),
        (DatumType::U32, "<u4", 4),
        (DatumType::U64, "<u8", 8),
        (DatumType::Bool, "|b1", 1),
    ];
    for (dt, descr, size) in types {
        let model = folder(
            Model::opset(13)
                .input("x", dt, &sizes(&[2, 3]))
                .node(Node::new("Identity").inputs(&["x"]).output("y"))
                .output("y")
                .build(),
        );
        let data: Vec<u8> = (0..6 * size).map(|byte| (byte % size == 0) as u8).collect();
        std::fs::write(model.path().join("x.npy"), npy(descr, "(2, 3)", &data)).unwrap();
        let (onnx, out) = (path(&model, "model.onnx"), path(&model, "out.npz"));
        let x = format!("x={}", path(&model, "x.npy"));
        tract_deconv(["run", &onnx, "--input", &x, "--output", &out]).with(0).says(&["2×3", &format!("{dt:?}")]);
        tract_deconv(["run", &onnx, "--input", &x, "--check", &out]).with(0).says(&["ok"]);
        // Random values exist for each type, and differ from these.
        tract_deconv(["run", &onnx]).with(0).says(&["random"]);
    }
}

#[test]
fn an_input_that_does_not_fit_is_refused() {
    let model = folder(plain());
    let onnx = path(&model, "model.onnx");
    let give = |file: Vec<u8>| {
        std::fs::write(model.path().join("x.npy"), file).unwrap();
        tract_deconv(["run", &onnx, "--input", &format!("x={}", path(&model, "x.npy"))])
    };
    give(npy("<f4", "(1, 4, 5, 7)", &ramp(140)))
        .with(1)
        .complains(&["input x: shape=1×4×5×7, the model declares 1×4×5×6"]);
    give(npy("<f4", "(4, 5, 6)", &ramp(120))).with(1).complains(&["input x: shape=4×5×6"]);
    give(npy("<f8", "(1, 4, 5, 6)", &ramp(240))).with(1).complains(&["datum_type=F64", "F32"]);
    give(npy("<c8", "(1, 4, 5, 6)", &ramp(240))).with(1).complains(&["<c8", "x.npy"]);
    give(npy("<f4", "(1, 4, 5, 600000000000000)", &ramp(120))).with(1).complains(&["x.npy"]);
    give(b"not numpy's".to_vec()).with(1).complains(&["x.npy"]);
    give(npy("<f4", "(1, 4, 5, 6)", &ramp(120))).with(0);
    tract_deconv(["run", &onnx, "--input", "x=absent.npy"]).with(1).complains(&["absent.npy"]);
    tract_deconv(["run", &onnx, "--input", "absent.npz"]).with(1).complains(&["absent.npz"]);
    tract_deconv(["run", &onnx, "--input", &onnx]).with(1).complains(&["model.onnx"]);
}

#[test]
fn symbols_are_named_set_and_bound_by_inputs() {
    let model = folder(symbolic());
    let onnx = path(&model, "model.onnx");
    for command in ["run", "bench"] {
        tract_deconv([command, &onnx]).with(2).complains(&[
            "batch×4×height×6",
            "--set batch=N",
            "--set height=N",
            "--input",
        ]);
    }
    tract_deconv(["run", &onnx, "--set", "batch=2"]).with(2).complains(&["--set height=N"]);
    tract_deconv(["run", &onnx, "--set", "batch=2", "--set", "height=3"]).with(0).says(&["2×3×7×13"]);
    tract_deconv(["run", &onnx, "--set", "width=2"]).with(2).complains(&["the model's symbols are batch, height"]);
    std::fs::write(model.path().join("x.npy"), npy("<f4", "(3, 4, 1, 6)", &ramp(72))).unwrap();
    let x = format!("x={}", path(&model, "x.npy"));
    tract_deconv(["run", &onnx, "--input", &x]).with(0).says(&["3×3×3×13"]);
    tract_deconv(["run", &onnx, "--input", &x, "--set", "batch=2"]).with(1).complains(&["3×4×1×6", "2×4×height×6"]);
}

#[test]
fn dimensions_without_a_name_get_one() {
    let mut proto = symbolic();
    let input = proto.graph.as_mut().unwrap().input[0].r#type.as_mut().unwrap();
    let Some(tract_onnx::pb::type_proto::Value::TensorType(tensor)) = input.value.as_mut() else { unreachable!() };
    tensor.shape.as_mut().unwrap().dim.iter_mut().step_by(2).for_each(|dim| dim.value = None);
    let model = folder(proto);
    let onnx = path(&model, "model.onnx");
    tract_deconv(["run", &onnx]).with(2).complains(&["--set x_0=N", "--set x_2=N"]);
    tract_deconv(["run", &onnx, "--set", "x_0=2", "--set", "x_2=3"]).with(0).says(&["2×3×7×13"]);
}

#[test]
fn dimensions_that_do_not_unify_are_fixed_to_the_inputs() {
    let model = folder(
        Model::default()
            .input("a", DatumType::F32, &["n".into(), 2.into()])
            .input("b", DatumType::F32, &["m".into(), 2.into()])
            .node(Node::new("Concat").inputs(&["a", "b"]).output("y").int("axis", 1))
            .output("y")
            .build(),
    );
    let (onnx, io) = (path(&model, "model.onnx"), path(&model, "io.npz"));
    tract_deconv(["run", &onnx, "--set", "n=3", "--set", "m=3", "--output", &io]).with(0);
    for command in ["run", "bench", "explain"] {
        let seconds = if command == "bench" { &["--seconds", "0.05"][..] } else { &[] };
        tract_deconv([&[command, &onnx][..], seconds].concat()).with(0).says(&["fixed as by --set m=3 --set n=3"]);
    }
}

/// The size of the filter is an input's value.
#[test]
fn a_filter_of_open_sizes_is_explained() {
    let model = folder(
        Model::opset(13)
            .input("x", DatumType::F32, &sizes(&[1, 2, 9, 8]))
            .input("k", DatumType::I64, &sizes(&[1]))
            .initializer("longest", &Tensor::zero::<f32>(&[3, 2, 7, 3]).unwrap())
            .initializer("zero", &tensor1(&[0i64]))
            .initializer("two", &tensor1(&[2i64]))
            .node(Node::new("Slice").inputs(&["longest", "zero", "k", "two"]).output("w"))
            .node(Node::new("Conv").inputs(&["x", "w"]).output("y"))
            .output("y")
            .build(),
    );
    tract_deconv(["explain", &path(&model, "model.onnx"), "--conv"]).with(0).says(&[
        "conv (onnx)",
        "a filter whose sizes are known at run time only",
        "chosen at run time, once per shape of input and filter",
    ]);
}

/// One channel to the cosines and sines of all bins. With one weight changed, it is a convolution.
#[test]
fn explain_tells_a_fourier_transform() {
    let explained = |filter: &Tensor| {
        let model = folder(
            Model::opset(13)
                .input("x", DatumType::F32, &sizes(&[1, 1, 40_000]))
                .initializer("w", filter)
                .node(Node::new("Conv").inputs(&["x", "w"]).output("y").ints("strides", &[128]))
                .output("y")
                .build(),
        );
        tract_deconv(["explain", &path(&model, "model.onnx"), "--conv"]).with(0)
    };
    let angle = |row: usize, tap: usize| std::f64::consts::TAU * (row * tap % 512) as f64 / 512.0;
    let value = |at: usize| match (at / 512, at % 512) {
        (row, tap) if row < 257 => angle(row, tap).cos() as f32,
        (row, tap) => -angle(row - 257, tap).sin() as f32,
    };
    let mut weights: Vec<f32> = (0..514 * 512).map(value).collect();
    let filter = |weights: &[f32]| Tensor::from_shape(&[514, 1, 512], weights).unwrap();
    explained(&filter(&weights)).says(&["a Fourier transform of 512 points per frame"]);
    weights[1000] += 0.1;
    explained(&filter(&weights)).says(&["no Fourier transform: ", "strategy"]);
}

#[test]
fn bf16_models_run_as_f32_and_say_so() {
    let weights: Vec<u8> = [0u16, 0x3f80, 0x4000].iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let bf16 = DataType::Bfloat16;
    let model = folder(
        Model::opset(22)
            .raw_initializer("w", bf16, &[1, 1, 3], weights)
            .raw_input("x", bf16, &sizes(&[1, 1, 4]))
            .node(Node::new("ConvTranspose").inputs(&["x", "w"]).output("y"))
            .output("y")
            .build(),
    );
    let onnx = path(&model, "model.onnx");
    tract_deconv(["run", &onnx]).with(0).says(&["input x 1×1×4 F32", "1×1×6"]).complains(&["bf16"]);
    tract_deconv(["bench", &onnx, "--seconds", "0.05"]).with(0).says(&["stock tract can't do this model"]);
}

#[test]
fn inputs_beside_the_model_are_used_where_they_fit() {
    let model = folder(symbolic());
    let io = path(&model, "io.npz");
    tract_deconv(["run", &path(&model, "model.onnx"), "--set", "batch=2", "--set", "height=3", "--output", &io])
        .with(0);
    let folder = model.path().display().to_string();
    tract_deconv(["run", &folder]).with(0).says(&["input x 2×4×3×6 F32", "io.npz"]);
    tract_deconv(["run", &folder, "--set", "batch=1", "--set", "height=1"]).with(0).says(&[
        "io.npz is left aside",
        "random",
        "1×4×1×6",
    ]);
}

#[test]
fn a_benchmark_writes_its_figures_and_no_bar() {
    let files = tempfile::tempdir().unwrap();
    let (json, svg) = (path(&files, "bench.json"), path(&files, "bench.svg"));
    let model = models().join("dcgan_small").display().to_string();
    let ended = tract_deconv(["bench", &model, "--seconds", "0.3", "--json", &json, "--plot", &svg]).with(0).says(&[
        "threads 1 of",
        "agrees with stock tract",
        "optimised with open dimensions",
        "--set batch=3",
        "median",
        "p95",
        "spread",
        "speed-up",
        "load",
        "optimise",
        "peak memory",
        "double1",
        "convolutions",
        "no operator of tract's is beside the plugin's",
    ]);
    for text in [&ended.out, &ended.err] {
        assert!(!text.contains('\r') && !text.contains('\u{1b}'), "a bar in a pipe: {text:?}");
    }
    let json: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    for engine in ["stock", "plugin"] {
        let engine = &json["engines"][engine];
        let latency = &engine["latency_ms"];
        let runs = latency["runs"].as_u64().unwrap();
        assert!(runs >= 5 && engine["samples_ms"].as_array().unwrap().len() as u64 == runs, "{engine}");
        let of = |key: &str| latency[key].as_f64().unwrap();
        assert!(0.0 < of("min") && of("min") <= of("median") && of("median") <= of("p95"), "{latency}");
        assert_eq!(engine["convolutions"].as_array().unwrap().len(), 4, "{engine}");
        let parts = engine["operators_ms"].as_object().unwrap().values().map(|ms| ms.as_f64().unwrap()).sum::<f64>();
        assert!((parts / engine["profiled_total_ms"].as_f64().unwrap() - 1.0).abs() < 1e-6, "{engine}");
        if cfg!(target_os = "linux") {
            assert!(engine["process"]["peak_memory_bytes"].as_u64().unwrap() > 1_000_000, "{engine}");
        }
    }
    let medians = ["stock", "plugin"].map(|e| json["engines"][e]["latency_ms"]["median"].as_f64().unwrap());
    assert!((json["speed_up"].as_f64().unwrap() - medians[0] / medians[1]).abs() < 1e-9);
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("stock tract: median") && svg.contains("plugin: median"));
}

/// The vocoder has layers of both directions.
#[test]
fn a_benchmark_times_deconvolutions_only_beside_both_directions() {
    let files = tempfile::tempdir().unwrap();
    let json = path(&files, "bench.json");
    let model = models().join("vocoder").display().to_string();
    let bench = |more: &[&str]| {
        let args = [&["bench", &*model, "--seconds", "0.05", "--json", &json][..], more].concat();
        let ended = tract_deconv(args).with(0);
        let json: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        (ended, json)
    };
    let (ended, json_of_all) = bench(&[]);
    ended.says(&["plugin, deconvolutions only", "the plugin agrees with the plugin with deconvolutions only"]);
    let medians = ["stock", "deconv"].map(|e| json_of_all["engines"][e]["latency_ms"]["median"].as_f64().unwrap());
    let ratio = json_of_all["speed_up_with_deconvolutions_only"].as_f64().unwrap();
    assert!((ratio - medians[0] / medians[1]).abs() < 1e-9);
    let forward = |engine: &str| json_of_all["engines"][engine]["operators_ms"].get("Im2col").is_some();
    assert!(json_of_all["engines"]["plugin"].is_object() && !forward("plugin"), "{json_of_all}");
    let (_, json_of_two) = bench(&["--conv"]);
    assert!(json_of_two["engines"]["plugin"].is_object() && json_of_two["engines"]["deconv"].is_null());
}

/// The exact plugin is timed beside the one that rounds, whose error is printed.
#[test]
fn a_precision_is_explained_and_benchmarked() {
    let files = tempfile::tempdir().unwrap();
    let json = path(&files, "bench.json");
    let model = models().join("dcgan_small").display().to_string();
    let rounded = ["--precision", "bf16", "--exact-node", "paint"];
    let explained = tract_deconv([&["explain", &*model][..], &rounded].concat());
    explained.with(0).says(&["precision exact: its name matches \"paint\""]);
    let bench = ["bench", &*model, "--seconds", "0.3", "--json", &json];
    let ended = tract_deconv([&bench[..], &rounded].concat());
    ended.with(0).says(&["stock tract", "plugin, exact", "speed-up over stock tract", "error against exact"]);
    let json: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(json["precision"], "bf16");
    assert!(["stock", "exact", "plugin"].iter().all(|engine| json["engines"][engine].is_object()));
    let errors = json["engines"]["plugin"]["errors_against_exact"].as_array().unwrap();
    let error = errors[0]["relative"].as_f64().unwrap();
    // With a bound of the layers' products it would be a percent.
    assert!(errors.len() == 1 && error < 0.02 && (error > 1e-5 || Isa::best() != Isa::Amx), "{errors:?}");
    tract_deconv(["explain", &model, "--precision", "tf32"])
        .with(2)
        .complains(&["the known ones are exact, bf16, f16"]);
    tract_deconv(["explain", &model]).with(0).says(&["precision exact"]);
}

/// The condition's value is random, so that one of the branches runs.
#[test]
fn a_benchmark_times_the_layers_in_a_condition() {
    let branch = |name: &str| {
        let layer = Node::new("ConvTranspose").named(name).inputs(&["x", "w"]).output(name);
        let relu = format!("{name}.relu");
        Model::opset(13).node(layer).node(Node::new("Relu").named(&relu).inputs(&[name]).output(&relu)).output(&relu)
    };
    let branches = Node::new("If").named("either").inputs(&["c"]);
    let branches = branches.graph("then_branch", branch("up")).graph("else_branch", branch("grown"));
    let model = Model::opset(13)
        .input("x", DatumType::F32, &sizes(&[1, 4, 30, 30]))
        .input("limit", DatumType::F32, &sizes(&[1]))
        .initializer("w", &Tensor::zero::<f32>(&[4, 3, 3, 3]).unwrap())
        .initializer("zero", &tensor1(&[0f32]))
        .node(Node::new("Greater").inputs(&["limit", "zero"]).output("c"))
        .node(branches.output("y"))
        .output("y");
    let files = folder(model.build());
    let json = path(&files, "bench.json");
    tract_deconv(["bench", &path(&files, "model.onnx"), "--seconds", "0.1", "--json", &json]).with(0);
    let json: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let plugin = &json["engines"]["plugin"];
    let [layer] = &plugin["convolutions"].as_array().unwrap()[..] else { panic!("{plugin}") };
    let name = layer["name"].as_str().unwrap();
    assert!(["either/then/up", "either/else/grown"].contains(&name), "{plugin}");
    assert!(layer["ms"].as_f64().unwrap() > 0.0, "{plugin}");
    let parts: f64 = plugin["operators_ms"].as_object().unwrap().values().map(|ms| ms.as_f64().unwrap()).sum();
    let total = plugin["profiled_total_ms"].as_f64().unwrap();
    assert!((parts / total - 1.0).abs() < 1e-6 && plugin["operators_ms"]["OptIf (plugin)"].is_number(), "{plugin}");
}

#[test]
fn a_model_that_only_the_plugin_can_do_is_timed_alone() {
    let model =
        folder(up(&sizes(&[1, 4, 5, 6]), |node| node.string("auto_pad", "SAME_UPPER").ints("output_shape", &[9, 11])));
    let json = path(&model, "bench.json");
    tract_deconv(["bench", &path(&model, "model.onnx"), "--seconds", "0.05", "--json", &json])
        .with(0)
        .says(&["stock tract can't do this model", "median"]);
    let json: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert!(json["speed_up"].is_null() && json["engines"]["stock"].is_null() && json["engines"]["plugin"].is_object());
}

#[test]
fn different_answers_are_not_timed_unless_a_reference_decides() {
    // One position less than F. Stock tract crops it on the wrong side.
    let model =
        folder(up(&sizes(&[1, 4, 5, 6]), |node| node.ints("output_padding", &[1, 1]).ints("output_shape", &[11, 13])));
    let onnx = path(&model, "model.onnx");
    tract_deconv(["bench", &onnx, "--seconds", "0.05"])
        .with(1)
        .complains(&["answers differ, nothing was timed", "output y"]);
    tract_deconv(["run", &onnx, "--output", &path(&model, "io.npz")]).with(0);
    tract_deconv(["bench", &onnx, "--seconds", "0.05"]).with(0).says(&["stock tract: its answer is wrong", "speed-up"]);
}

#[test]
fn a_benchmark_refuses_before_the_timing_what_it_cannot_write() {
    let model = folder(plain());
    let onnx = path(&model, "model.onnx");
    for flag in ["--json", "--plot"] {
        let file = path(&model, "absent/file");
        let ended = tract_deconv(["bench", &onnx, "--seconds", "600", flag, &file]).with(1).complains(&["absent/file"]);
        assert!(ended.out.is_empty());
    }
}

#[test]
fn threads_can_be_set() {
    let model = folder(plain());
    tract_deconv(["run", &path(&model, "model.onnx"), "--threads", "2"]).with(0);
}

#[test]
fn broken_models_are_errors() {
    let whole = plain().encode_to_vec();
    let files = tempfile::tempdir().unwrap();
    let onnx = path(&files, "model.onnx");
    let mut broken: Vec<Vec<u8>> = (0..whole.len()).step_by(29).map(|len| whole[..len].to_vec()).collect();
    broken.push(b"<html>not found</html>".to_vec());
    broken.push(up(&sizes(&[1, 4, 5, 6]), |node| node.ints("dilations", &[0, 1])).encode_to_vec());
    broken.push(up(&sizes(&[1, 4, 5, 6]), |node| node.int("group", 0)).encode_to_vec());
    for bytes in broken {
        std::fs::write(&onnx, bytes).unwrap();
        for command in ["run", "bench", "explain"] {
            tract_deconv([command, &onnx]).with(1).complains(&["error: "]);
        }
    }
    tract_deconv(["run", &path(&files, "absent.onnx")]).with(1).complains(&["absent.onnx, no such file"]);
    tract_deconv(["run", &files.path().join("nowhere").display().to_string()]).with(1).complains(&["no such file"]);
}

#[test]
fn a_chain_says_nothing_twice() {
    let model = folder(up(&sizes(&[1, 4, 5, 6]), |node| node.int("group", 3)));
    let ended = tract_deconv(["run", &path(&model, "model.onnx")]).with(1).complains(&["group=3"]);
    let lines: Vec<&str> = ended.err.lines().map(|line| line.trim().trim_start_matches("because: ")).collect();
    for (ix, line) in lines.iter().enumerate() {
        assert!(!lines[..ix].iter().any(|before| before.contains(line)), "{}", ended.err);
    }
}

#[test]
fn a_reader_that_left_is_no_failure() {
    let model = models().join("dcgan_small").display().to_string();
    for args in [vec!["run", &model], vec!["explain", &model], vec!["bench", &model, "--seconds", "0.05"]] {
        let mut child = program().args(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let ended = Ended::from(child.wait_with_output().unwrap()).with(0);
        // On a busy machine a step may take long enough to print its progress.
        assert!(ended.err.lines().all(|line| line.ends_with(" s so far")), "{args:?}: {}", ended.err);
    }
}

/// With `--conv` the plugin computes forward convolutions in every command. Without it, `explain`
/// counts those left to tract.
#[test]
fn forward_convolutions_where_they_are_asked_for() {
    let model = "models/denoiser";
    tract_deconv(["explain", model]).with(0).says(&["forward convolutions are left to tract, --conv takes them"]);
    let ended = tract_deconv(["explain", model, "--conv"]).with(0).says(&["forward 2-d", "transposed 2-d"]);
    assert!(!ended.out.contains("left to tract"), "{}", ended.out);
    tract_deconv(["run", model, "--conv", "--check", "models/denoiser/io.npz"]).with(0).says(&["ok"]);
    let bench = tract_deconv(["bench", model, "--conv", "--seconds", "0.05"]).with(0).says(&["the plugin agrees with"]);
    assert!(!bench.out.contains("Im2col"), "{}", bench.out);
}

#[test]
fn explain_tells_each_deconvolution() {
    let model = models().join("dcgan_small").display().to_string();
    tract_deconv(["explain", &model]).with(0).says(&[
        "project",
        "double0",
        "double1",
        "paint",
        "onnx",
        "kernel",
        "strides",
        "multiply-adds",
        "strategy",
    ]);
    let relu = folder(
        Model::default()
            .input("x", DatumType::F32, &sizes(&[1]))
            .node(Node::new("Relu").inputs(&["x"]).output("y"))
            .output("y")
            .build(),
    );
    tract_deconv(["explain", &path(&relu, "model.onnx")]).with(0).says(&["no deconvolution"]);
    let symbolic = folder(symbolic());
    let onnx = path(&symbolic, "model.onnx");
    tract_deconv(["explain", &onnx]).with(2).complains(&["--set batch=N", "--set height=N"]);
    tract_deconv(["explain", &onnx, "--set", "batch=2", "--set", "height=3"]).with(0).says(&["2×3×7×13"]);
}

/// Returns a model with one input whose shape is not declared.
fn shapeless() -> ModelProto {
    let mut proto = plain();
    let input = proto.graph.as_mut().unwrap().input[0].r#type.as_mut().unwrap();
    let Some(tract_onnx::pb::type_proto::Value::TensorType(tensor)) = input.value.as_mut() else { unreachable!() };
    tensor.shape = None;
    proto
}

#[test]
fn inputs_get_their_shapes_from_the_command_line() {
    let seconds = |command: &str| if command == "bench" { &["--seconds", "0.05"][..] } else { &[] };
    let (undeclared, symbolic) = (folder(shapeless()), folder(symbolic()));
    for command in ["run", "bench", "explain"] {
        for model in [&undeclared, &symbolic] {
            let onnx = path(model, "model.onnx");
            tract_deconv([command, &onnx]).with(2).complains(&["--input-shape"]);
            for shape in ["2x4x3x6", "x=2x4x3x6"] {
                let args = [&[command, &onnx, "--input-shape", shape][..], seconds(command)].concat();
                tract_deconv(args).with(0).says(&[if command == "bench" { "2×4×3×6" } else { "2×3×7×13" }]);
            }
        }
        // The sizes must agree with a symbol's value.
        let onnx = path(&symbolic, "model.onnx");
        let agree = [&[command, &onnx, "--set", "batch=2", "--input-shape", "2x4x3x6"][..], seconds(command)].concat();
        tract_deconv(agree).with(0);
        tract_deconv([command, &onnx, "--set", "batch=3", "--input-shape", "2x4x3x6"])
            .with(2)
            .complains(&["--input-shape 2x4x3x6: batch is 3 already"]);
        tract_deconv([command, &onnx, "--input-shape", "2x5x3x6"]).with(2).complains(&["the model declares"]);
    }
    // An io.npz next to the model also has a shape.
    let onnx = path(&undeclared, "model.onnx");
    tract_deconv(["run", &onnx, "--input-shape", "2x4x3x6", "--output", &path(&undeclared, "io.npz")]).with(0);
    tract_deconv(["explain", &onnx]).with(0).says(&["shapes as in", "2×3×7×13"]);
    tract_deconv(["explain", &onnx, "--input-shape", "1x4x1x1"]).with(0).says(&["1×3×3×3"]);
}

#[test]
fn two_inputs_need_names() {
    let model = folder(
        Model::default()
            .input("a", DatumType::F32, &["n".into(), 2.into()])
            .input("b", DatumType::F32, &["m".into(), 2.into()])
            .node(Node::new("Concat").inputs(&["a", "b"]).output("y").int("axis", 0))
            .output("y")
            .build(),
    );
    let onnx = path(&model, "model.onnx");
    tract_deconv(["run", &onnx, "--input-shape", "3x2"]).with(2).complains(&["the model's inputs are a, b"]);
    tract_deconv(["run", &onnx, "--input-shape", "a=3x2", "--input-shape", "b=4x2"]).with(0).says(&["7×2"]);
    tract_deconv(["run", &onnx, "--input-shape", "a=3x2"]).with(2).complains(&["--set m=N"]);
}

#[test]
fn what_inflates_is_refused_at_once() {
    let model = folder(plain());
    let onnx = path(&model, "model.onnx");
    let give = |entry: &str, data: &[u8]| {
        let file = std::fs::File::create(model.path().join("x.npz")).unwrap();
        let mut zip = zip::ZipWriter::new(file);
        zip.start_file(entry, zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut zip, data).unwrap();
        zip.finish().unwrap();
        tract_deconv(["run", &onnx, "--input", &path(&model, "x.npz")])
    };
    let array = npy("<f4", "(1, 4, 5, 6)", &ramp(120));
    give("x.npy", &array).with(0);
    let zeros = vec![0; 8 << 20];
    give("x.npy", &[&array, &zeros[..]].concat()).with(1).complains(&["x.npz", "its header makes them"]);
    give("x.npy", &[&b"\x93NUMPY\x02\x00\xff\xff\xff\xff"[..], &zeros].concat())
        .with(1)
        .complains(&["header: bytes=4294967295, more than the limit of 10000"]);
    give("inner.zip", &zeros).with(1).complains(&["entry inner.zip: it is no npy file"]);
}

#[test]
fn inputs_of_the_program_are_bounded() {
    let model = folder(symbolic());
    let onnx = path(&model, "model.onnx");
    let huge = ["--set", "batch=2147483647", "--set", "height=2147483647"];
    for command in ["run", "bench"] {
        tract_deconv([&[command, &onnx][..], &huge].concat()).with(1).complains(&["more than the limit of 268435456"]);
    }
    tract_deconv(["run", "/dev/null"]).with(1).complains(&["/dev/null, it is no file"]);
    for file in ["absent/out.npz", "."] {
        let out = path(&model, file);
        tract_deconv(["run", &onnx, "--input-shape", "1x4x1x6", "--output", &out]).with(1).complains(&[file]);
    }
    // If the run fails, the output file keeps its content.
    let kept = path(&model, "kept.json");
    std::fs::write(&kept, "kept").unwrap();
    tract_deconv(["bench", &onnx, "--json", &kept]).with(2);
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "kept");
}

#[cfg(target_os = "linux")]
#[test]
fn threads_that_can_not_be_had_are_an_error() {
    let model = folder(plain());
    let command = format!(
        "ulimit -v 700000; exec '{}' run '{}' --threads 256",
        env!("CARGO_BIN_EXE_tract-deconv"),
        path(&model, "model.onnx")
    );
    let ended: Ended = Command::new("sh").args(["-c", &command]).output().unwrap().into();
    let ended = ended.with(1).complains(&["threads: threads=256, the system gives no more than"]);
    assert!(!ended.err.contains("panicked"), "{}", ended.err);
}

/// A long step prints its progress after one second. An interrupt ends the program and its children
/// at once.
#[cfg(target_os = "linux")]
#[test]
fn a_long_benchmark_tells_and_can_be_interrupted() {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::ExitStatusExt;
    use std::time::{Duration, Instant};
    let children = |id: u32| -> Vec<u32> {
        let list = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        list.split_whitespace().map(|id| id.parse().unwrap()).collect()
    };
    let runs = |id: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    };
    // Children inherit an ignored interrupt, as from a shell script that starts the tests with `&`.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    if u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 << (2 - 1) != 0 {
        eprintln!("ignored: interrupts are ignored by the process that runs the tests");
        return;
    }
    let model = folder(symbolic());
    for (args, measuring) in [
        (["--seconds", "600", "--input-shape", "1x4x5x6"], false),
        // Large enough for the test to find the child processes.
        (["--seconds", "600", "--input-shape", "2000x4x64x6"], true),
    ] {
        let onnx = path(&model, "model.onnx");
        let mut child = program()
            .args([&["bench", &onnx][..], &args].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut started = vec![];
        if measuring {
            let deadline = Instant::now() + Duration::from_secs(100);
            while started.is_empty() && Instant::now() < deadline {
                started = children(child.id());
            }
            assert!(!started.is_empty(), "no process was started");
        } else {
            let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
            let line = lines.find(|line| line.starts_with("timing for 660 s: ")).expect("a line of progress");
            assert!(line.ends_with(" s so far"), "{line}");
        }
        // Interrupts the process alone. Ctrl-C would interrupt its group. The children must notice
        // by themselves.
        let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(interrupted.success());
        assert_eq!(child.wait().unwrap().signal(), Some(2));
        let deadline = Instant::now() + Duration::from_secs(20);
        while started.iter().any(runs) {
            assert!(Instant::now() < deadline, "{started:?} still run");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
