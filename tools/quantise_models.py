"""Quantises ONNX models to 8 bits with onnxruntime's tools, and stores what onnxruntime computes.

    python3 -m venv .venv && .venv/bin/pip install -r tools/requirements.txt
    .venv/bin/python tools/quantise_models.py MODEL.onnx OUT            # static: DequantizeLinear and QuantizeLinear
    .venv/bin/python tools/quantise_models.py MODEL.onnx OUT --dynamic  # ConvInteger behind DynamicQuantizeLinear
    .venv/bin/python tools/quantise_models.py                           # this project's models

OUT gets model.onnx and io.npz: inputs (arrays in__NAME) and the outputs of the quantised model (arrays out__NAME), which
onnxruntime computes without its graph optimisations. Weights are i8 with a scale per output channel, data are u8.

The inputs are those of the io.npz beside MODEL. Static quantisation needs inputs to find the ranges of the data: those of
the files that --data names, npz files with arrays in__NAME. Without --data, they are drawn with the mean and the deviation
of the inputs in io.npz, seeded by the model's name: fine for this project's models, whose inputs are noise, but not for
a trained one. Without an io.npz, the inputs are those of the first file of --data.

A second run with the same versions on the same machine writes the same bytes. With --check, which is for this project's
models, nothing is written. The new files are compared with the committed ones: real numbers at 1e-5 of their scale, and
integers at one step, as sums are rounded otherwise on another machine. A step inside a model changes what follows it, so
outputs are compared on the committed model.
"""

import argparse
import pathlib
import sys
import tempfile
import zlib

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUANTISED = ROOT / "tests" / "data" / "quantised"
# Each folder of the project, with its model and whether it is dynamic.
PROJECT = {
    "dcgan_small": ("dcgan_small", False),
    "denoiser": ("denoiser", False),
    "unet_symbolic": ("unet_symbolic", False),
    "unet_symbolic_dynamic": ("unet_symbolic", True),
    "upscale4": ("upscale4", False),
    "vocoder": ("vocoder", False),
}
# The oldest opset with scales per channel, and the IR version of its time.
OPSET, IR = 13, 7
DRAWS = 8


class Feeds(CalibrationDataReader):
    def __init__(self, feeds):
        self.feeds = iter(feeds)

    def get_next(self):
        return next(self.feeds, None)


def inputs_of(file):
    with np.load(file) as stored:
        inputs = {key.removeprefix("in__"): stored[key] for key in stored.files if key.startswith("in__")}
    if not inputs:
        sys.exit(f"{file}: no array in__NAME")
    return inputs


def drawn_like(inputs, name):
    rng = np.random.default_rng(zlib.crc32(f"{name} quantised".encode()))
    for key, value in inputs.items():
        if value.dtype.kind != "f":
            sys.exit(f"{name}: input {key} is {value.dtype}, only real numbers are drawn: --data is needed")
    for _ in range(DRAWS):
        yield {
            key: (value.mean() + value.std() * rng.standard_normal(value.shape)).astype(value.dtype)
            for key, value in inputs.items()
        }


def opset_of(model):
    return next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))


def fold_batch_normalisation(model):
    """Multiplies each BatchNormalization into the weights of the convolution before it.

    onnxruntime's tools would quantise the factors, or round between the two.
    """
    graph = model.graph
    bodies = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    if any(attribute.type in bodies for node in graph.node for attribute in node.attribute):
        return  # A branch or a body may read any value.
    constants = {tensor.name: tensor for tensor in graph.initializer}
    outputs = {output.name for output in graph.output}
    readers = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for conv in [node for node in graph.node if node.op_type in ("Conv", "ConvTranspose")]:
        after = readers.get(conv.output[0], [])
        norm = after[0] if len(after) == 1 and conv.output[0] not in outputs else None
        if norm is None or norm.op_type != "BatchNormalization" or norm.input[0] != conv.output[0]:
            continue
        operands = [*conv.input[1:], *norm.input[1:]]
        if len(norm.output) > 1 or any(name not in constants or len(readers[name]) > 1 for name in operands):
            continue
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in norm.attribute}
        factor, shift, mean, variance = (numpy_helper.to_array(constants[name]) for name in norm.input[1:])
        factor = factor.astype(np.float64) / np.sqrt(variance.astype(np.float64) + attributes.get("epsilon", 1e-5))
        weight = numpy_helper.to_array(constants[conv.input[1]])
        if conv.op_type == "Conv":
            per_channel = factor.reshape([-1] + [1] * (weight.ndim - 1))
        else:
            # Of a transposed filter, each group of input channels has its own output channels.
            group = next((a.i for a in conv.attribute if a.name == "group"), 1)
            rows = np.repeat(factor.reshape(group, -1), weight.shape[0] // group, axis=0)
            per_channel = rows.reshape(list(weight.shape[:2]) + [1] * (weight.ndim - 2))
        bias = numpy_helper.to_array(constants[conv.input[2]]) if len(conv.input) > 2 else 0.0
        bias = ((bias - mean) * factor + shift).astype(weight.dtype)
        constants[conv.input[1]].CopyFrom(numpy_helper.from_array((weight * per_channel).astype(weight.dtype), conv.input[1]))
        if len(conv.input) == 2:
            conv.input.append(f"{conv.name or conv.output[0]}.bias")
            graph.initializer.append(numpy_helper.from_array(bias, conv.input[2]))
        else:
            constants[conv.input[2]].CopyFrom(numpy_helper.from_array(bias, conv.input[2]))
        conv.output[0] = norm.output[0]
        graph.node.remove(norm)
        for tensor in [constants[name] for name in norm.input[1:]]:
            graph.initializer.remove(tensor)


def has_grouped_bias(model):
    """Whether a transposed layer has groups and a bias, for which onnxruntime's tools have no scales."""
    return any(
        node.op_type == "ConvTranspose" and len(node.input) > 2 and any(a.name == "group" and a.i > 1 for a in node.attribute)
        for node in model.graph.node
    )


def quantised(file, feeds, dynamic):
    model = onnx.load(file)
    if opset_of(model) < OPSET:
        model = onnx.version_converter.convert_version(model, OPSET)
        model.ir_version = max(model.ir_version, IR)
    fold_batch_normalisation(model)
    with tempfile.TemporaryDirectory() as folder:
        source, target = pathlib.Path(folder) / "source.onnx", pathlib.Path(folder) / "target.onnx"
        onnx.save(model, source)
        if dynamic:
            # onnxruntime has no ConvInteger in i8, and a transposed layer has no dynamic form.
            quantize_dynamic(source, target, per_channel=False, weight_type=QuantType.QUInt8, op_types_to_quantize=["Conv"])
        else:
            # Else a bias stays in f32.
            options = {"QuantizeBias": not has_grouped_bias(model)}
            quantize_static(
                source, target, Feeds(feeds), quant_format=QuantFormat.QDQ, per_channel=True,
                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, extra_options=options,
            )
        return onnx.load(target)


def run(model, feeds):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    # Runs the operators as written, without onnxruntime's fusions.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds)))


def make(file, name, dynamic, data):
    """Returns a quantised model, and the arrays of its io.npz."""
    beside = file.parent / "io.npz"
    if not beside.is_file() and not data:
        sys.exit(f"{beside} is not there: --data is needed, npz files with arrays in__NAME")
    inputs = inputs_of(beside if beside.is_file() else data[0])
    feeds = [inputs_of(other) for other in data] if data else drawn_like(inputs, name)
    model = quantised(file, feeds, dynamic)
    return model, arrays_of(model, inputs)


def arrays_of(model, inputs):
    return {f"in__{k}": v for k, v in inputs.items()} | {f"out__{k}": v for k, v in run(model, inputs).items()}


def write(folder, model, arrays):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
    np.savez_compressed(folder / "io.npz", **arrays)


def are_close(stored, fresh):
    if stored.shape != fresh.shape or stored.dtype != fresh.dtype:
        return False
    apart = np.abs(stored.astype(np.float64) - fresh.astype(np.float64)).max(initial=0)
    most = 1e-5 * np.abs(stored).max(initial=0) if stored.dtype.kind == "f" else 1
    return bool(apart <= most)


def is_fresh(folder, model, arrays):
    stored = onnx.load(folder / "model.onnx")
    tensors = [{t.name: numpy_helper.to_array(t) for t in m.graph.initializer} for m in (stored, model)]
    with np.load(folder / "io.npz") as io:
        inputs = {key: io[key] for key in io.files}
    tensors += [inputs, arrays_of(stored, inputs_of(folder / "io.npz"))]
    without = [onnx.ModelProto.FromString(m.SerializeToString()) for m in (stored, model)]
    for m in without:
        del m.graph.initializer[:]
    same = without[0] == without[1] and all(np.array_equal(inputs[key], arrays[key]) for key in arrays if key.startswith("in__"))
    return same and all(
        set(a) == set(b) and all(are_close(a[key], b[key]) for key in a) for a, b in (tensors[:2], tensors[2:])
    )


def report(name, model, file, arrays):
    print(f"{name}: {file.stat().st_size} bytes became {model.ByteSize()}")
    original = onnx.load(file)
    exact = run(original, {k.removeprefix("in__"): v for k, v in arrays.items() if k.startswith("in__")})
    for key, value in exact.items():
        error = arrays[f"out__{key}"].astype(np.float64) - value
        most, mean = np.abs(error).max() / np.abs(value).max(), np.linalg.norm(error) / np.linalg.norm(value)
        print(f"  {key}: differs from f32 by at most {most:.1e} of the largest value, root mean square {mean:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=pathlib.Path, help="an .onnx file")
    parser.add_argument("out", nargs="?", type=pathlib.Path, help="the folder to write")
    parser.add_argument("--dynamic", action="store_true", help="find the range of the data at each run")
    parser.add_argument("--data", nargs="+", type=pathlib.Path, default=[], help="npz files with arrays in__NAME")
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    arguments = parser.parse_args()
    if arguments.model:
        if not arguments.out or arguments.check:
            parser.error("MODEL needs OUT, and no --check")
        name = arguments.model.parent.resolve().name
        model, arrays = make(arguments.model, name, arguments.dynamic, arguments.data)
        write(arguments.out, model, arrays)
        report(arguments.model, model, arguments.model, arrays)
        return
    if arguments.dynamic or arguments.data:
        parser.error("--dynamic and --data need MODEL and OUT")
    stale = []
    for folder, (name, dynamic) in PROJECT.items():
        file = ROOT / "models" / name / "model.onnx"
        model, arrays = make(file, name, dynamic, [])
        report(folder, model, file, arrays)
        if not arguments.check:
            write(QUANTISED / folder, model, arrays)
        elif not is_fresh(QUANTISED / folder, model, arrays):
            stale.append(folder)
    if stale:
        sys.exit(f"not what this script writes: {', '.join(stale)}")


if __name__ == "__main__":
    main()
