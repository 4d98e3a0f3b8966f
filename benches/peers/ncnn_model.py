"""Converts ONNX models to ncnn's text and weight files.

    ncnn_model.py MODEL.onnx FOLDER     writes FOLDER/ncnn.param, ncnn.bin and ncnn.json

onnxruntime first folds constants and batch normalisations. ncnn has no batch axis, so the converter takes models whose
tensors all begin with an axis of size 1, and drops that axis. All shapes must be known. `Unsupported` says what a model has
that this converter, or ncnn, does not take.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

import workloads
from unsupported import Unsupported

MAGIC = 7767517
# Precedes weights that are stored as f32.
PLAIN_F32 = b"\0\0\0\0"
SUFFIX = {1: "1D", 2: "", 3: "3D"}
BINARY = {"Add": 0, "Sub": 1, "Mul": 2, "Div": 3, "Max": 4, "Min": 5}
# The same operations with the operands exchanged.
REVERSED = {"Add": 0, "Sub": 7, "Mul": 2, "Div": 8, "Max": 4, "Min": 5}
UNARY = {"Abs": 0, "Neg": 1, "Floor": 2, "Ceil": 3, "Sqrt": 5, "Exp": 7, "Log": 8}
SQUARE, POWER = 4, 6
REDUCTIONS = {"ReduceSum": 0, "ReduceMean": 3, "ReduceMax": 4, "ReduceMin": 5}
# ncnn's numbers of permutations, by the source axis of each result axis, outermost first.
PERMUTATIONS = {
    (0, 1): 0, (1, 0): 1,
    (0, 1, 2): 0, (0, 2, 1): 1, (1, 0, 2): 2, (1, 2, 0): 3, (2, 0, 1): 4, (2, 1, 0): 5,
}
FUSED = ("Relu", "LeakyRelu", "Clip", "Sigmoid")


def convert(model_path, folder):
    """Writes ncnn's files of a model. ncnn.json names the blobs of the inputs and of the outputs."""
    graph = simplified(model_path).graph
    converter = Converter(graph)
    converter.convert()
    names = {"inputs": [converter.blob_of_input[value.name] for value in converter.inputs],
             "outputs": [converter.take(value.name) for value in graph.output]}
    count = f"{len(converter.lines)} {converter.blobs}"
    (folder / "ncnn.bin").write_bytes(b"".join(converter.weights))
    (folder / "ncnn.json").write_text(json.dumps(names))
    # last, as the file whose presence says that the conversion is complete
    (folder / "ncnn.param").write_text("\n".join([str(MAGIC), count, *converter.lines]) + "\n")


def simplified(model_path):
    """Returns the model after onnxruntime's basic optimisations, with the shape of every value."""
    import onnxruntime
    with tempfile.TemporaryDirectory() as scratch:
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(Path(scratch) / "model.onnx")
        onnxruntime.InferenceSession(str(model_path), options, providers=["CPUExecutionProvider"])
        model = onnx.load(options.optimized_model_filepath)
    return shape_inference.infer_shapes(model, data_prop=True)


class Converter:
    def __init__(self, graph):
        self.graph = graph
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self.inputs = [value for value in graph.input if value.name not in self.constants]
        self.shapes = {name: list(array.shape) for name, array in self.constants.items()}
        for value in [*graph.input, *graph.value_info, *graph.output]:
            dims = value.type.tensor_type.shape.dim
            if all(dim.HasField("dim_value") for dim in dims):
                self.shapes[value.name] = [dim.dim_value for dim in dims]
        self.lines, self.weights, self.blobs = [], [], 0
        # Values that are other values under another name, and the readers of each value.
        self.aliases, self.readers = {}, {}
        for node in graph.node:
            for name in node.input:
                self.readers[name] = self.readers.get(name, 0) + 1
        for value in graph.output:
            self.readers[value.name] = self.readers.get(value.name, 0) + 1
        # The blobs of a value that still have no reader.
        self.ready, self.blob_of_input = {}, {}

    def convert(self):
        for value in self.inputs:
            self.blob_of_input[value.name] = self.emit("Input", [], value.name, blob=f"in{len(self.lines)}")
        skip = set()
        for at, node in enumerate(self.graph.node):
            if at in skip:
                continue
            attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
            convert = getattr(self, "op_" + node.op_type.lower(), None) if node.domain in ("", "ai.onnx") else None
            if node.op_type in BINARY:
                self.binary(node)
            elif node.op_type in UNARY:
                self.emit("UnaryOp", node.input, node.output[0], {0: UNARY[node.op_type]})
            elif node.op_type in REDUCTIONS:
                self.reduce(node, attributes)
            elif node.op_type in ("Conv", "ConvTranspose"):
                skip |= self.convolution(at, node, attributes)
            elif convert:
                convert(node, attributes)
            else:
                raise Unsupported(f"operator={node.op_type}, not converted")

    def shape(self, name):
        """Returns the shape of a value without its batch axis. A single value keeps its axis."""
        shape = self.shapes.get(name)
        if shape is None:
            raise Unsupported(f"value={name}, its shape is not known")
        if shape == [1]:
            return shape
        if not 2 <= len(shape) <= 5:
            raise Unsupported(f"shape={shape}, only 2 to 5 axes")
        if shape[0] != 1:
            raise Unsupported(f"batch={shape[0]}, only one image at a time")
        return shape[1:]

    def constant(self, name):
        if name not in self.constants:
            raise Unsupported(f"value={name}, only constants are taken there")
        return self.constants[name]

    def take(self, name):
        """Returns a blob of the value for one reader. ncnn's blobs have one reader each."""
        while name in self.aliases:
            name = self.aliases[name]
        if name in self.constants:
            return self.memory_data(self.constants[name])
        if not self.ready.get(name):
            raise Unsupported(f"value={name}, nothing has computed it")
        return self.ready[name].pop()

    def rename(self, name, as_name):
        """Makes a value another name of the value before."""
        self.aliases[as_name] = name
        # The alias stood for one reader of the source. Its own readers take blobs of the source instead.
        self.split(name, self.take(name), self.readers.get(as_name, 0))

    def emit(self, kind, inputs, output, parameters=None, blob=None, taken=None):
        """Adds a layer. `inputs` are values, or with `taken` blobs. Returns the blob of its output."""
        self.shape(output)
        blobs = taken if taken is not None else [self.take(name) for name in inputs]
        return self.define(output, self.layer(kind, blobs, parameters, blob))

    def layer(self, kind, blobs, parameters=None, blob=None):
        blob = blob or f"b{self.blobs}"
        words = [f"{key}={value}" for key, value in (parameters or {}).items()]
        self.lines.append(" ".join([kind, f"l{len(self.lines)}", str(len(blobs)), "1", *blobs, blob, *words]))
        self.blobs += 1
        return blob

    def define(self, name, blob):
        self.split(name, blob, self.readers.get(name, 0))
        return blob

    def split(self, name, blob, readers):
        while name in self.aliases:
            name = self.aliases[name]
        ready = self.ready.setdefault(name, [])
        if readers <= 1:
            ready.append(blob)
            return
        copies = [f"{blob}_{len(self.lines)}_{at}" for at in range(readers)]
        self.lines.append(" ".join(["Split", f"l{len(self.lines)}", "1", str(readers), blob, *copies]))
        self.blobs += readers
        ready.extend(copies)

    def memory_data(self, array, rank=None):
        """Adds a constant. Its shape gets leading axes of 1 up to the rank."""
        shape = list(array.shape)
        if rank is not None:
            shape = [1] * (rank - len(shape)) + shape
        if not 1 <= len(shape) <= 4:
            raise Unsupported(f"constant of shape {shape}, only 1 to 4 axes")
        self.weights.append(np.ascontiguousarray(array, np.float32).tobytes())
        return self.layer("MemoryData", [], sizes(shape))

    def add_weights(self, array):
        self.weights.append(PLAIN_F32 + np.ascontiguousarray(array, np.float32).tobytes())

    def convolution(self, at, node, attributes):
        """Converts a convolution with what alone reads its result: a batch normalisation, then an activation.

        Returns the indices of the nodes that are part of it.
        """
        weights = self.constant(node.input[1])
        bias = self.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        row = geometry(node.op_type, attributes, self.shape(node.input[0]), weights, self.shape(node.output[0]))
        rank, transposed = len(row["kernel"]), row["op"] == "conv_transpose"
        if transposed and min(row["pads"]) < 0:
            raise Unsupported(f"pads={row['pads']}, negative padding")
        weights, output, activation, fused = workloads.filter_by_group(row, weights), node.output[0], {}, set()
        index, following = self.only_reader(output)
        if following and following.op_type == "BatchNormalization":
            scale, shift = self.scale_and_shift(following)
            weights = weights * scale.reshape(row["group"], -1, *[1] * (rank + 1))
            bias = shift + (0 if bias is None else bias * scale)
            output = following.output[0]
            fused.add(index)
            index, following = self.only_reader(output)
        # ncnn's volumes have no activation inside.
        if following and following.op_type in FUSED and rank < 3:
            activation, output = self.activation(following), following.output[0]
            fused.add(index)
        parameters = {0: row["out_channels"], 5: int(bias is not None), 6: weights.size}
        innermost_first = list(range(rank))[::-1]
        for place, axis in enumerate(innermost_first):
            parameters |= {1 + 10 * place: row["kernel"][axis], 2 + 10 * place: row["dilations"][axis],
                           3 + 10 * place: row["strides"][axis], 4 + 10 * place: row["pads"][axis],
                           15 + place: row["pads"][rank + axis]}
            if transposed:
                parameters[18 + place] = row["output_padding"][axis]
        if row["group"] > 1:
            parameters[7] = row["group"]
        kind = ("Deconvolution" if transposed else "Convolution") + ("DepthWise" if row["group"] > 1 else "") + SUFFIX[rank]
        self.add_weights(weights)
        if bias is not None:
            self.weights.append(np.ascontiguousarray(bias, np.float32).tobytes())
        self.emit(kind, node.input[:1], output, parameters | activation)
        return fused

    def only_reader(self, name):
        """Returns the index and the node that alone reads a value."""
        if self.readers.get(name) == 1:
            for index, node in enumerate(self.graph.node):
                if name in node.input:
                    return index, node
        return None, None

    def scale_and_shift(self, node):
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        scale, shift, mean, variance = (self.constant(name).astype(np.float64) for name in node.input[1:5])
        factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
        return factor, shift - mean * factor

    def op_batchnormalization(self, node, attributes):
        scale, shift = self.scale_and_shift(node)
        # Slope, mean, variance and shift, of which the middle two are folded.
        for values in (scale, np.zeros(scale.size), np.ones(scale.size), shift):
            self.weights.append(values.astype(np.float32).tobytes())
        self.emit("BatchNorm", node.input[:1], node.output[0], {0: scale.size, 1: 0.0})

    def activation(self, node):
        """Returns the parameters of an activation inside a convolution."""
        if node.op_type == "Relu":
            return {9: 1}
        if node.op_type == "Sigmoid":
            return {9: 4}
        if node.op_type == "LeakyRelu":
            alpha = next((a.f for a in node.attribute if a.name == "alpha"), 0.01)
            return {9: 2, -23310: f"1,{alpha:.9e}"}
        low, high = self.bounds(node)
        return {9: 3, -23310: f"2,{low:.9e},{high:.9e}"}

    def bounds(self, node):
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        bounds = []
        for at, (name, default) in enumerate((("min", -3.4e38), ("max", 3.4e38)), 1):
            given = self.constant(node.input[at]) if len(node.input) > at and node.input[at] else attributes.get(name, default)
            bounds.append(float(np.reshape(given, ())))
        return bounds

    def op_relu(self, node, attributes):
        self.emit("ReLU", node.input, node.output[0])

    def op_leakyrelu(self, node, attributes):
        self.emit("ReLU", node.input, node.output[0], {0: f"{attributes.get('alpha', 0.01):.9e}"})

    def op_clip(self, node, attributes):
        low, high = self.bounds(node)
        self.emit("Clip", node.input[:1], node.output[0], {0: f"{low:.9e}", 1: f"{high:.9e}"})

    def op_sigmoid(self, node, attributes):
        self.emit("Sigmoid", node.input, node.output[0])

    def op_tanh(self, node, attributes):
        self.emit("TanH", node.input, node.output[0])

    def op_hardsigmoid(self, node, attributes):
        alpha, beta = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
        self.emit("HardSigmoid", node.input, node.output[0], {0: f"{alpha:.9e}", 1: f"{beta:.9e}"})

    def op_hardswish(self, node, attributes):
        self.emit("HardSwish", node.input, node.output[0], {0: f"{1 / 6:.9e}", 1: "0.5"})

    def op_prelu(self, node, attributes):
        slopes, shape = self.constant(node.input[1]), self.shape(node.input[0])
        if slopes.size not in (1, shape[0]) or slopes.size != max(slopes.shape[-len(shape)] if slopes.ndim >= len(shape) else 1, 1):
            raise Unsupported(f"PRelu: slopes={list(slopes.shape)}, only one per channel")
        self.weights.append(np.ascontiguousarray(slopes, np.float32).tobytes())
        self.emit("PReLU", node.input[:1], node.output[0], {0: slopes.size})

    def binary(self, node):
        if len(node.input) != 2:
            raise Unsupported(f"{node.op_type}: inputs={len(node.input)}, only two")
        constant = next((at for at, name in enumerate(node.input) if name in self.constants), None)
        table = REVERSED if constant == 0 else BINARY
        parameters = {0: table[node.op_type]}
        if constant is None:
            left, right = map(self.shape, node.input)
            if len(left) != len(right):
                raise Unsupported(f"{node.op_type}: shapes={left} and {right}, only of one rank")
            self.emit("BinaryOp", node.input, node.output[0], parameters)
            return
        array, other = self.constants[node.input[constant]], node.input[1 - constant]
        if array.size == 1 and array.ndim <= len(self.shape(other)) + 1:
            parameters |= {1: 1, 2: f"{float(array.reshape(())):.9e}"}
            self.emit("BinaryOp", [other], node.output[0], parameters)
            return
        rank = len(self.shape(other))
        if array.ndim == rank + 1:
            array = array[0] if array.shape[0] == 1 else array
        if array.ndim > rank:
            raise Unsupported(f"{node.op_type}: shape={list(array.shape)} of a constant beside {self.shape(other)}")
        blob = self.memory_data(array, rank)
        self.emit("BinaryOp", [], node.output[0], parameters, taken=[self.take(other), blob])

    def op_pow(self, node, attributes):
        exponent = float(np.reshape(self.constant(node.input[1]), ()))
        if exponent == 2:
            self.emit("UnaryOp", node.input[:1], node.output[0], {0: SQUARE})
        elif exponent.is_integer():
            # ncnn's power is wrong for numbers below zero, which have no other powers than these.
            raise Unsupported(f"Pow: exponent={exponent:g}, only 2 and fractions")
        else:
            self.emit("BinaryOp", node.input[:1], node.output[0], {0: POWER, 1: 1, 2: f"{exponent:.9e}"})

    def op_concat(self, node, attributes):
        axis = attributes["axis"] % len(self.shapes[node.output[0]])
        self.emit("Concat", node.input, node.output[0], {0: self.inner_axis(axis)})

    def inner_axis(self, axis):
        if axis == 0:
            raise Unsupported("axis=0, the batch axis")
        return axis - 1

    def op_maxpool(self, node, attributes):
        if len(node.output) > 1 or set(attributes.get("dilations", [1])) != {1}:
            raise Unsupported("MaxPool: only of one output and without dilation")
        self.pool(node, attributes, {0: 0})

    def op_averagepool(self, node, attributes):
        self.pool(node, attributes, {0: 1, 6: attributes.get("count_include_pad", 0)})

    def pool(self, node, attributes, parameters):
        rank = len(attributes["kernel_shape"])
        strides = attributes.get("strides", [1] * rank)
        begin, end = padding(attributes, self.shape(node.input[0])[1:], attributes["kernel_shape"], strides, [1] * rank)
        for place, axis in enumerate(list(range(rank))[::-1]):
            parameters |= {1 + 10 * place: attributes["kernel_shape"][axis], 2 + 10 * place: strides[axis],
                           3 + 10 * place: begin[axis], 14 + place: end[axis]}
        # 0 rounds the output size up, 1 rounds down.
        parameters[5] = 0 if attributes.get("ceil_mode") else 1
        self.emit("Pooling" + SUFFIX[rank], node.input, node.output[0], parameters)

    def op_globalaveragepool(self, node, attributes):
        shape = self.shape(node.input[0])
        if len(shape) != 3:
            raise Unsupported(f"GlobalAveragePool: shape={shape}, only planes")
        pooled = self.layer("Pooling", [self.take(node.input[0])], {0: 1, 4: 1})
        # The result has lost the axes of the plane.
        self.emit("Reshape", [], node.output[0], sizes([shape[0], 1, 1]), taken=[pooled])

    def reduce(self, node, attributes):
        rank = len(self.shapes[node.input[0]])
        axes = self.constant(node.input[1]) if len(node.input) > 1 and node.input[1] else attributes.get("axes")
        if axes is None:
            raise Unsupported(f"{node.op_type}: all axes")
        inner = [self.inner_axis(int(axis) % rank) for axis in axes]
        parameters = {0: REDUCTIONS[node.op_type], 1: 0, -23303: ",".join(map(str, [len(inner), *inner])),
                      4: attributes.get("keepdims", 1), 5: 1}
        self.emit("Reduction", node.input[:1], node.output[0], parameters)

    def op_resize(self, node, attributes):
        (channels, *source), (kept, *result) = self.shape(node.input[0]), self.shape(node.output[0])
        if len(source) != 2 or kept != channels:
            raise Unsupported(f"Resize: shape={[channels, *source]} to {[kept, *result]}, only planes")
        mode, where = (attributes.get(name, default).decode() for name, default in
                       (("mode", b"nearest"), ("coordinate_transformation_mode", b"half_pixel")))
        rounding = attributes.get("nearest_mode", b"round_prefer_floor").decode()
        parameters = {3: result[0], 4: result[1]}
        if mode == "linear" and where in ("half_pixel", "pytorch_half_pixel", "align_corners"):
            parameters |= {0: 2, 6: int(where == "align_corners")}
        elif mode == "nearest" and nearest_rounds_down(where, rounding, source, result):
            parameters |= {0: 1}
        else:
            raise Unsupported(f"Resize: mode={mode}, {where}, {rounding}")
        self.emit("Interp", node.input[:1], node.output[0], parameters)

    def op_pad(self, node, attributes):
        rank = len(self.shapes[node.input[0]])
        amounts = [int(n) for n in (self.constant(node.input[1]) if len(node.input) > 1 else attributes["pads"])]
        value = float(np.reshape(self.constant(node.input[2]), ())) if len(node.input) > 2 and node.input[2] else 0.0
        begin, end = amounts[:rank], amounts[rank:]
        kind = {"constant": 0, "edge": 1, "reflect": 2}.get(attributes.get("mode", b"constant").decode())
        if len(node.input) > 3 or kind is None or rank != 4 or any(begin[:2] + end[:2]) or min(amounts) < 0:
            raise Unsupported(f"Pad: pads={amounts}, only the axes of a plane")
        parameters = {0: begin[2], 1: end[2], 2: begin[3], 3: end[3], 4: kind, 5: f"{value:.9e}"}
        self.emit("Padding", node.input[:1], node.output[0], parameters)

    def op_spacetodepth(self, node, attributes):
        # Mode 1: the positions of a block are the outer part of the channel, as in ONNX.
        self.emit("Reorg", node.input, node.output[0], {0: attributes["blocksize"], 1: 1})

    def op_depthtospace(self, node, attributes):
        outer_positions = attributes.get("mode", b"DCR") == b"DCR"
        self.emit("PixelShuffle", node.input, node.output[0], {0: attributes["blocksize"], 1: int(outer_positions)})

    def op_gather(self, node, attributes):
        rank, index = len(self.shapes[node.input[0]]), self.constant(node.input[1])
        axis = attributes.get("axis", 0) % rank
        if node.input[0] in self.constants:
            self.constants[node.output[0]] = np.take(self.constants[node.input[0]], index, axis)
            return
        if index.ndim == 1 and axis == 1 and self.permute_inputs_of_reader(node.output[0], index):
            self.shapes.setdefault(node.output[0], self.shapes[node.input[0]])
            self.rename(node.input[0], node.output[0])
            return
        if index.ndim:
            raise Unsupported(f"Gather: indices={index.tolist()}, only one")
        at = int(index) % self.shapes[node.input[0]][axis]
        crop = self.layer("Crop", [self.take(node.input[0])], crop_parameters([at], [at + 1], [self.inner_axis(axis)]))
        self.emit("Reshape", [], node.output[0], sizes(self.shape(node.output[0])), taken=[crop])

    def permute_inputs_of_reader(self, name, order):
        """Moves a permutation of channels into the filter of the convolution that alone reads them, if there is one."""
        _, reader = self.only_reader(name)
        if not reader or reader.op_type != "Conv" or any(a.name == "group" and a.i != 1 for a in reader.attribute):
            return False
        weights = self.constant(reader.input[1])
        if sorted(order) != list(range(weights.shape[1])) or self.readers[reader.input[1]] > 1:
            return False
        self.constants[reader.input[1]] = weights[:, np.argsort(order)]
        return True

    def op_softmax(self, node, attributes):
        rank = len(self.shapes[node.input[0]])
        self.emit("Softmax", node.input, node.output[0], {0: self.inner_axis(attributes.get("axis", -1) % rank), 1: 1})

    def op_transpose(self, node, attributes):
        first, *others = attributes["perm"]
        number = PERMUTATIONS.get(tuple(axis - 1 for axis in others))
        if first != 0 or number is None:
            raise Unsupported(f"Transpose: perm={attributes['perm']}")
        self.emit("Permute", node.input, node.output[0], {0: number})

    def op_reshape(self, node, attributes):
        self.shape(node.input[0])
        self.emit("Reshape", node.input[:1], node.output[0], sizes(self.shape(node.output[0])))

    op_flatten = op_squeeze = op_unsqueeze = op_reshape

    def op_identity(self, node, attributes):
        self.rename(node.input[0], node.output[0])

    def op_dropout(self, node, attributes):
        self.rename(node.input[0], node.output[0])

    def op_gemm(self, node, attributes):
        if attributes.get("transA") or attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
            raise Unsupported("Gemm: only x times a matrix, plus a vector")
        matrix = self.constant(node.input[1])
        bias = self.constant(node.input[2]) if len(node.input) > 2 else None
        self.inner_product(node, matrix if attributes.get("transB") else matrix.T, bias)

    def op_matmul(self, node, attributes):
        matrix = self.constant(node.input[1])
        if matrix.ndim != 2 or len(self.shape(node.input[0])) > 2:
            raise Unsupported(f"MatMul: shapes={self.shapes[node.input[0]]} and {list(matrix.shape)}")
        self.inner_product(node, matrix.T, None)

    def inner_product(self, node, matrix, bias):
        self.add_weights(matrix)
        if bias is not None:
            self.weights.append(np.broadcast_to(bias, matrix.shape[:1]).astype(np.float32).tobytes())
        self.emit("InnerProduct", node.input[:1], node.output[0],
                  {0: matrix.shape[0], 1: int(bias is not None), 2: matrix.size})

    def op_slice(self, node, attributes):
        rank = len(self.shapes[node.input[0]])
        given = [self.constant(name).tolist() for name in node.input[1:] if name]
        starts, ends, *rest = given if given else (attributes["starts"], attributes["ends"], attributes.get("axes"))
        axes = rest[0] if rest and rest[0] is not None else range(len(starts))
        if len(rest) > 1 and set(rest[1]) != {1}:
            raise Unsupported(f"Slice: steps={rest[1]}, only 1")
        size = self.shapes[node.input[0]]
        axes = [axis % rank for axis in axes]
        clamp = lambda index, axis: max(0, min(size[axis], index + size[axis] if index < 0 else index))
        ranges = [(clamp(start, axis), clamp(end, axis), axis) for start, end, axis in zip(starts, ends, axes)]
        ranges = [(start, end, self.inner_axis(axis)) for start, end, axis in ranges if (start, end) != (0, size[axis])]
        if ranges:
            self.emit("Crop", node.input[:1], node.output[0], crop_parameters(*zip(*ranges)))
        else:
            self.rename(node.input[0], node.output[0])


def sizes(shape):
    """Returns the parameters of a shape: innermost axis first, and the depth of volumes under a number of its own."""
    width, *others = shape[::-1]
    parameters = {0: width}
    if len(others) == 3:
        parameters |= {1: others[0], 11: others[1], 2: others[2]}
    else:
        parameters |= dict(zip((1, 2), others))
    return parameters


def crop_parameters(starts, ends, axes):
    lists = starts, ends, axes
    return {-23309 - at: ",".join(map(str, [len(values), *values])) for at, values in enumerate(lists)}


def geometry(op_type, attributes, input_shape, weights, output_shape):
    """Returns the geometry of a node as a workload row. ONNX's automatic padding becomes explicit."""
    rank, transposed = weights.ndim - 2, op_type == "ConvTranspose"
    kernel, group = list(weights.shape[2:]), attributes.get("group", 1)
    if not 1 <= rank <= 3 or len(input_shape) != rank + 1:
        raise Unsupported(f"{op_type}: kernel={kernel}, only 1 to 3 axes")
    strides, dilations = attributes.get("strides", [1] * rank), attributes.get("dilations", [1] * rank)
    output_padding = list(attributes.get("output_padding", [0] * rank))
    if transposed:
        begin, end = list(attributes.get("pads", [0] * rank * 2))[:rank], None
        same = attributes.get("auto_pad", b"NOTSET")
        totals = [s * (x - 1) + extra + d * (k - 1) + 1 - out for s, x, extra, d, k, out in
                  zip(strides, input_shape[1:], output_padding, dilations, kernel, output_shape[1:])]
        if same != b"NOTSET" or "output_shape" in attributes:
            begin = [(total + 1) // 2 if same == b"SAME_LOWER" or "output_shape" in attributes and same != b"SAME_UPPER"
                     else total // 2 for total in totals]
        end = [total - first for total, first in zip(totals, begin)]
    else:
        begin, end = padding(attributes, input_shape[1:], kernel, strides, dilations)
    return {
        "op": "conv_transpose" if transposed else "conv", "batch": 1, "in_channels": input_shape[0],
        "out_channels": output_shape[0], "group": group, "kernel": kernel, "strides": list(strides),
        "dilations": list(dilations), "pads": [*begin, *end], "output_padding": output_padding,
        "input_spatial": input_shape[1:],
    }


def padding(attributes, source, kernel, strides, dilations):
    """Returns the padding at the beginning and at the end of each axis, of a forward convolution or a pool."""
    rank, mode = len(kernel), attributes.get("auto_pad", b"NOTSET").decode()
    if mode == "NOTSET":
        pads = list(attributes.get("pads", [0] * 2 * rank))
        return pads[:rank], pads[rank:]
    if mode == "VALID":
        return [0] * rank, [0] * rank
    totals = [max(0, (-(-x // s) - 1) * s + d * (k - 1) + 1 - x) for x, s, d, k in zip(source, strides, dilations, kernel)]
    begin = [(total + 1) // 2 if mode == "SAME_LOWER" else total // 2 for total in totals]
    return begin, [total - first for total, first in zip(totals, begin)]


def nearest_rounds_down(where, rounding, source, result):
    """Returns whether ONNX's nearest neighbour is ncnn's: the result's index over the scale, rounded down."""
    rounds = {"floor": math.floor, "ceil": math.ceil, "round_prefer_floor": lambda v: math.ceil(v - 0.5),
              "round_prefer_ceil": lambda v: math.floor(v + 0.5)}.get(rounding)
    for small, large in zip(source, result):
        scale = large / small
        at = {"half_pixel": lambda i: (i + 0.5) / scale - 0.5, "pytorch_half_pixel": lambda i: (i + 0.5) / scale - 0.5,
              "asymmetric": lambda i: i / scale}.get(where)
        if rounds is None or at is None:
            return False
        if any(min(max(rounds(at(i)), 0), small - 1) != min(int(i / scale), small - 1) for i in range(large)):
            return False
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    convert(arguments.model, arguments.folder)
