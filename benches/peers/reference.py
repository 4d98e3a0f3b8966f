"""Computes the float64 result of a model by the operators' definitions. Every engine is compared with it."""

import itertools

import numpy as np
from onnx import helper, numpy_helper

import workloads


def evaluate(model, x):
    """Returns the first output of an ONNX model in float64, and the useful flops of its convolutions."""
    graph = model.graph
    values = {tensor.name: numpy_helper.to_array(tensor).astype(np.float64) for tensor in graph.initializer}
    values[graph.input[0].name] = x.astype(np.float64)
    flops = 0
    for node in graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        inputs = [values[name] for name in node.input]
        if node.op_type in ("Conv", "ConvTranspose"):
            row = geometry(node.op_type, attributes, *inputs[:2])
            flops += workloads.useful_flops(row)
            values[node.output[0]] = convolve(row, *inputs)
        else:
            values[node.output[0]] = OPERATORS[node.op_type](attributes, *inputs)
    return values[graph.output[0].name], flops


def geometry(op_type, attributes, x, w):
    """Returns the geometry of a node as a workload row."""
    rank, group = x.ndim - 2, attributes.get("group", 1)
    transposed = op_type == "ConvTranspose"
    return {
        "op": "conv_transpose" if transposed else "conv", "batch": x.shape[0], "in_channels": x.shape[1],
        "out_channels": w.shape[1] * group if transposed else w.shape[0], "group": group,
        "kernel": list(w.shape[2:]), "strides": attributes.get("strides", [1] * rank),
        "pads": attributes.get("pads", [0] * 2 * rank), "dilations": attributes.get("dilations", [1] * rank),
        "output_padding": attributes.get("output_padding", [0] * rank), "input_spatial": list(x.shape[2:]),
    }


def convolve(row, x, w, bias=None):
    """Computes a convolution or its transpose, with one matrix product per tap over the whole image."""
    n, g, rank = row["batch"], row["group"], len(row["kernel"])
    co, ci = row["out_channels"] // g, row["in_channels"] // g
    out = workloads.output_spatial(row)
    transposed = row["op"] == "conv_transpose"
    w = workloads.filter_by_group(row, w)
    # The size of the strided side with its padding: that of the output if transposed, else that of the input.
    begin, end = row["pads"][:rank], row["pads"][rank:]
    long = [o + pb + pe for o, pb, pe in zip(out if transposed else row["input_spatial"], begin, end)]
    inner = tuple(slice(pb, size - pe) for pb, pe, size in zip(begin, end, long))
    if transposed:
        x = x.reshape(n, g, ci, -1)
        y = np.zeros((n, g * co, *long))
    else:
        padded = np.zeros((n, g * ci, *long))
        padded[:, :, *inner] = x
        y = np.zeros((n, g, co, int(np.prod(out))))
    short = row["input_spatial"] if transposed else out
    for tap in itertools.product(*map(range, row["kernel"])):
        weights = np.ascontiguousarray(w[:, :, :, *tap])
        window = tuple(slice(t * d, t * d + s * (size - 1) + 1, s)
                       for t, d, s, size in zip(tap, row["dilations"], row["strides"], short))
        if transposed:
            y[:, :, *window] += (weights @ x).reshape(n, g * co, *short)
        else:
            y += weights @ padded[:, :, *window].reshape(n, g, ci, -1)
    y = y[:, :, *inner] if transposed else y.reshape(n, g * co, *out)
    return y if bias is None else y + bias.reshape(-1, *[1] * rank)


def batch_normalization(attributes, x, scale, shift, mean, variance):
    column = lambda v: v.reshape(-1, *[1] * (x.ndim - 2))
    factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    return x * column(factor) + column(shift - mean * factor)


def max_pool_2x2(attributes, x):
    if attributes["kernel_shape"] != [2, 2] or attributes["strides"] != [2, 2]:
        raise NotImplementedError(f"MaxPool: {attributes}")
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))


OPERATORS = {
    "Add": lambda _, a, b: a + b,
    "BatchNormalization": batch_normalization,
    "Concat": lambda a, *inputs: np.concatenate(inputs, a["axis"]),
    "LeakyRelu": lambda a, x: np.where(x < 0, a.get("alpha", 0.01) * x, x),
    "MaxPool": max_pool_2x2,
    "Mul": lambda _, a, b: a * b,
    "Relu": lambda _, x: np.maximum(x, 0),
    "Sigmoid": lambda _, x: 1 / (1 + np.exp(-x)),
    "Sub": lambda _, a, b: a - b,
    "Tanh": lambda _, x: np.tanh(x),
    "Transpose": lambda a, x: x.transpose(a["perm"]),
}
