"""Writes the model, input and float64 result of each workload into benches/peers/.cache/<row>/.

Run as a program it fills the cache. run.py calls `prepare` for the rows that it needs. Weights and inputs are
random and seeded with the row's name, so every machine benchmarks the same files.
"""

import argparse
import json
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import ncnn_model
import reference
import workloads
from unsupported import Unsupported

CACHE = Path(__file__).resolve().parent / ".cache"
# Raise it when the files of the same row change.
GENERATOR = 1


class Builder:
    """An ONNX graph under construction. Every method returns the name of the value it adds."""

    def __init__(self, seed, input_shape):
        self.random = np.random.default_rng(seed)
        self.nodes, self.initializers = [], []
        self.channels = input_shape[1]
        self.input = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, input_shape)

    def node(self, op_type, inputs, domain="", **attributes):
        name = f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, domain=domain, **attributes))
        return name

    def constant(self, values):
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    def normal(self, shape, scale=1.0, mean=0.0):
        return self.constant(mean + scale * self.random.standard_normal(shape))

    def convolution(self, row, x, bias=True, gain=1.0, **extra):
        """Adds a node with the geometry of a workload row."""
        inputs = [x, self.normal(workloads.weight_shape(row), gain / workloads.fan_in(row) ** 0.5)]
        if bias:
            inputs.append(self.normal(row["out_channels"], 0.1))
        self.channels = row["out_channels"]
        rank = len(row["kernel"])
        attributes = {"strides": row["strides"], "dilations": row["dilations"], **extra}
        if "domain" in extra:
            attributes |= {"groups": row["group"], "pads_begin": row["pads"][:rank], "pads_end": row["pads"][rank:]}
        else:
            attributes |= {"group": row["group"], "pads": row["pads"], "kernel_shape": row["kernel"]}
        if row["op"] == "conv":
            return self.node("Conv", inputs, **attributes)
        return self.node("ConvTranspose", inputs, output_padding=row["output_padding"], **attributes)

    def conv(self, op, x, out_channels, kernel, rank=2, stride=1, pad=0, dilation=1, **extra):
        """Adds a node with the same sizes on every axis and the current number of channels."""
        row = {"op": op, "in_channels": self.channels, "out_channels": out_channels, "group": 1,
               "kernel": [kernel] * rank, "strides": [stride] * rank, "pads": [pad] * 2 * rank,
               "dilations": [dilation] * rank, "output_padding": [0] * rank}
        return self.convolution(row, x, **extra)

    def batch_norm(self, x):
        size = self.channels
        scale, shift, mean = self.normal(size, 0.1, 1.0), self.normal(size, 0.1), self.normal(size, 0.1)
        variance = self.constant(self.random.uniform(0.8, 1.2, size))
        return self.node("BatchNormalization", [x, scale, shift, mean, variance])

    def relu(self, x):
        return self.node("Relu", [x])

    def leaky_relu(self, x, alpha):
        return self.node("LeakyRelu", [x], alpha=alpha)

    def model(self, shape=None):
        """Returns the model. Its output is that of the last node, and always named y."""
        self.nodes[-1].output[0] = "y"
        y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, "workload", [self.input], [y], self.initializers)
        domains = {"": 17} | {node.domain: 1 for node in self.nodes if node.domain}
        return helper.make_model(graph, ir_version=8, producer_name="tract-deconv benches",
                                 opset_imports=[helper.make_opsetid(*domain) for domain in domains.items()])


def operator(row, builder):
    """Adds the row's node. Channels-last data passes a Transpose on each side, as ONNX's operator is channels-first."""
    rank = len(row["kernel"])
    if row["layout"] == "NCX":
        return builder.convolution(row, "x")
    x = builder.node("Transpose", ["x"], perm=[0, rank + 1, *range(1, rank + 1)])
    y = builder.convolution(row, x)
    return builder.node("Transpose", [y], perm=[0, *range(2, rank + 2), 1])


def operator_in_onednn_dialect(row, builder):
    """Adds the same channels-last node without Transposes: oneDNN's ConvTranspose with ONNX's layout of weights."""
    return builder.convolution(row, "x", domain="onednn", data_format="NXC", weights_format="IOX")


def dcgan64(b):
    x = "x"
    for i, channels in enumerate((512, 256, 128, 64)):
        stride, pad = (1, 0) if i == 0 else (2, 1)
        x = b.conv("conv_transpose", x, channels, 4, stride=stride, pad=pad, bias=False, gain=2 ** 0.5)
        x = b.relu(b.batch_norm(x))
    return b.node("Tanh", [b.conv("conv_transpose", x, 3, 4, stride=2, pad=1, bias=False)])


def unet256(b):
    def two_convs(x, channels):
        for _ in range(2):
            x = b.relu(b.conv("conv", x, channels, 3, pad=1, gain=2 ** 0.5))
        return x

    x, skips = "x", []
    for channels in (32, 64, 128, 256):
        x = two_convs(x, channels)
        skips.append(x)
        x = b.node("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = two_convs(x, 512)
    for channels in (256, 128, 64, 32):
        up = b.conv("conv_transpose", x, channels, 2, stride=2)
        x = b.node("Concat", [skips.pop(), up], axis=1)
        b.channels = 2 * channels
        x = two_convs(x, channels)
    return b.node("Sigmoid", [b.conv("conv", x, 1, 1)])


def hifigan_v1_100f(b):
    def conv(x, channels, kernel, dilation=1, **extra):
        return b.conv("conv", x, channels, kernel, rank=1, pad=dilation * (kernel - 1) // 2, dilation=dilation, **extra)

    x = conv("x", 512, 7)
    for rate, kernel in ((8, 16), (8, 16), (2, 4), (2, 4)):
        channels = b.channels // 2
        x = b.leaky_relu(x, 0.1)
        x = b.conv("conv_transpose", x, channels, kernel, rank=1, stride=rate, pad=(kernel - rate) // 2)
        stacks = []
        for size in (3, 7, 11):
            y = x
            for dilation in (1, 3, 5):
                # With a small gain, the nine residual additions per stage don't drive the signal into Tanh's plateau.
                inner = conv(b.leaky_relu(y, 0.1), channels, size, dilation, gain=0.5)
                y = b.node("Add", [y, conv(b.leaky_relu(inner, 0.1), channels, size, gain=0.5)])
            stacks.append(y)
        total = b.node("Add", [b.node("Add", stacks[:2]), stacks[2]])
        x = b.node("Mul", [total, b.constant(1 / 3)])
    return b.node("Tanh", [conv(b.leaky_relu(x, 0.01), 1, 7)])


def dbnet_head(b):
    def branch():
        b.channels = 256
        x = b.relu(b.batch_norm(b.conv("conv", "x", 64, 3, pad=1, bias=False)))
        x = b.relu(b.batch_norm(b.conv("conv_transpose", x, 64, 2, stride=2)))
        return b.node("Sigmoid", [b.conv("conv_transpose", x, 1, 2, stride=2)])

    difference = b.node("Sub", [branch(), branch()])
    return b.node("Sigmoid", [b.node("Mul", [difference, b.constant(50.0)])])


TOPOLOGIES = {build.__name__: build for build in (dcgan64, unet256, hifigan_v1_100f, dbnet_head)}


def prepare(row, engine=None):
    """Returns the row's folder in the cache, and fills it if it is missing, also with the engine's form of the model."""
    folder = CACHE / row["name"]
    stamp = folder / "row.json"
    made_from = json.dumps({"generator": GENERATOR, **row})
    if not stamp.exists() or stamp.read_text() != made_from:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if "folder" in row:
            copy(row, folder)
        else:
            write(row, folder)
        stamp.write_text(made_from)
    form, convert = FORMS.get(engine, ("model.onnx", None))
    if convert and not (folder / form).exists() and not refusal(folder, form).exists():
        if reason := convert(folder):
            refusal(folder, form).write_text(reason)
    return folder


def forget_rows_of_other_draws(seed):
    """Removes the files of rows that other seeds drew, which take gigabytes."""
    for folder in CACHE.glob("r[0-9]*_[tf][0-9][0-9][0-9]_*"):
        if not folder.name.startswith(f"r{seed}_"):
            shutil.rmtree(folder)


def refusal(folder, form):
    """Returns the file that says why there is no such form of the model."""
    return folder / (form + ".refused")


def write(row, folder):
    # A channels-last row has the same values as its channels-first row.
    seed = zlib.crc32(row.get("ncx_row", row["name"]).encode())
    # Builder reads the number of channels at axis 1. An operator's row has its own.
    builder = lambda: Builder(seed, workloads.input_shape(row))
    b = builder()
    if "op" in row:
        operator(row, b)
    else:
        TOPOLOGIES[row["name"]](b)
    model = onnx.shape_inference.infer_shapes(b.model(), check_type=True, strict_mode=True)
    onnx.checker.check_model(model)
    onnx.save(model, folder / "model.onnx")
    x = np.random.default_rng(seed + 1).standard_normal(workloads.input_shape(row), np.float32)
    y, flops = reference.evaluate(model, x)
    if flops != row["useful_flops"]:
        raise SystemExit(f"workloads.json: {row['name']}: useful_flops={row['useful_flops']}, the model has {flops}")
    if row.get("layout") == "NXC" and row["op"] == "conv_transpose":
        b = builder()
        operator_in_onednn_dialect(row, b)
        onnx.save(b.model(y.shape), folder / "onednn.onnx")
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y.astype(np.float32))


def copy(row, folder):
    """Copies a foreign model with its inputs and first output. Every engine gets the fixed shapes of these."""
    source = Path(row["folder"])
    model, io = onnx.load(source / "model.onnx"), np.load(source / "io.npz")
    initialised = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in initialised]
    for at, value in enumerate(inputs):
        x = io["in__" + value.name]
        for dim, size in zip(value.type.tensor_type.shape.dim, x.shape):
            dim.dim_value = size
        np.save(folder / f"x{at}.npy", x)
    outputs = [value.name for value in model.graph.output]
    # The declared shapes of results may not fit the fixed shapes.
    for graph in graphs(model.graph):
        del graph.value_info[:]
    for value in model.graph.output:
        for dim, size in zip(value.type.tensor_type.shape.dim, io["out__" + value.name].shape):
            dim.dim_value = size
    onnx.save(model, folder / "model.onnx")
    np.save(folder / "y.npy", io["out__" + outputs[0]])
    (folder / "names.json").write_text(json.dumps({"inputs": [value.name for value in inputs], "outputs": outputs}))


def graphs(graph):
    """Yields a graph and the graphs inside its nodes."""
    yield graph
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            yield from graphs(inner)


def convert_to_mnn(folder):
    """Converts a model for MNN. Returns why it could not.

    This calls the converter's extension module directly. The package's `mnnconvert` program first installs a logging
    client with pip, and then reports each conversion to a server.
    """
    call = "import sys, _tools; _tools.mnnconvert(sys.argv)"
    arguments = ["-f", "ONNX", "--modelFile", folder / "model.onnx", "--MNNModel", folder / "model.mnn",
                 "--bizCode", "peers"]
    subprocess.run([sys.executable, "-c", call, *map(str, arguments)], capture_output=True, check=False)
    return "" if (folder / "model.mnn").exists() else "unsupported: the MNN converter failed"


def convert_to_ncnn(folder):
    """Converts a model for ncnn. Returns why it could not."""
    try:
        ncnn_model.convert(folder / "model.onnx", folder)
    except Unsupported as reason:
        return f"unsupported: {reason}"
    except Exception as failure:  # whatever a foreign model raises is the row's result, and must not end the run
        return f"the ncnn converter failed: {type(failure).__name__}: {failure}"
    return ""


# The file of each engine that reads no ONNX, and what writes it.
FORMS = {"mnn": ("model.mnn", convert_to_mnn), "mnn-exact": ("model.mnn", convert_to_mnn),
         "ncnn": ("ncnn.param", convert_to_ncnn)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="*", help="globs of row names, comma-separated")
    parser.add_argument("--set", default="all", choices=("all", "listed", "unlisted", "floor", "models"))
    arguments = parser.parse_args()
    for row in workloads.select(workloads.load(), arguments.rows, arguments.set):
        for engine in FORMS:
            folder = prepare(row, engine)
        print(row["name"], *(path.read_text() for path in sorted(folder.glob("*.refused"))), flush=True)
