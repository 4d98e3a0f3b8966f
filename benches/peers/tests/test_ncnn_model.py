"""ncnn's answers to converted models are onnxruntime's."""

import tempfile
import unittest
from pathlib import Path

import numpy as np
import onnx

import ncnn_model
import peer
from tests.models import answers, model, numbers
from unsupported import Unsupported


def conv(kind, channels, outputs, kernel, spatial, group=1, bias=True, **attributes):
    """Returns a model of one convolution and its input's shape."""
    first, second = (outputs, channels // group) if kind == "Conv" else (channels, outputs // group)
    constants = {"w": numbers(first, second, *kernel) / np.float32(10)} | ({"b": numbers(outputs, seed=2)} if bias else {})
    nodes = [(kind, ["x", *constants], "y", {"group": group, "kernel_shape": list(kernel), **attributes})]
    return model(nodes, {"x": [1, channels, *spatial]}, constants)


def chain(*nodes, shape=(1, 5, 6, 7), constants=None):
    """Returns a model whose nodes (op type, further inputs, attributes) read one another's results."""
    values = ["x", *(f"v{at}" for at in range(len(nodes) - 1)), "y"]
    nodes = [(kind, [values[at], *more], values[at + 1], attributes) for at, (kind, more, attributes) in enumerate(nodes)]
    return model(nodes, {"x": list(shape)}, constants)


CONVOLUTIONS = {
    "one axis": conv("Conv", 6, 8, (5,), (21,), pads=[2, 1], strides=[2]),
    "one axis, dilated": conv("Conv", 4, 7, (3,), (30,), dilations=[3], pads=[3, 3]),
    "uneven padding": conv("Conv", 5, 9, (3, 4), (9, 10), pads=[0, 1, 2, 3], strides=[2, 1]),
    "no bias": conv("Conv", 8, 8, (3, 3), (12, 11), bias=False, pads=[1, 1, 1, 1]),
    "groups": conv("Conv", 12, 8, (3, 3), (9, 8), group=4, pads=[1, 1, 1, 1]),
    "depthwise": conv("Conv", 16, 16, (3, 5), (9, 8), group=16, pads=[1, 2, 1, 2], dilations=[1, 1]),
    "volume": conv("Conv", 3, 5, (3, 2, 1), (5, 6, 7), pads=[1, 0, 0, 1, 1, 0], strides=[1, 2, 1]),
    "same upper": conv("Conv", 3, 4, (4, 4), (9, 10), auto_pad="SAME_UPPER", strides=[2, 2]),
    "same lower": conv("Conv", 3, 4, (4, 4), (9, 10), auto_pad="SAME_LOWER", strides=[2, 2]),
    "transposed": conv("ConvTranspose", 8, 6, (4, 4), (5, 6), strides=[2, 2], pads=[1, 1, 1, 1]),
    "transposed, one axis": conv("ConvTranspose", 8, 6, (8,), (15,), strides=[4], pads=[2, 1]),
    "transposed, output padding": conv("ConvTranspose", 4, 6, (3, 5), (5, 6), strides=[2, 3], pads=[1, 0, 0, 2], output_padding=[1, 2]),
    "transposed, groups": conv("ConvTranspose", 12, 8, (3, 3), (5, 6), group=4, strides=[2, 2]),
    "transposed, depthwise": conv("ConvTranspose", 8, 8, (3, 3), (5, 6), group=8, strides=[2, 2], pads=[1, 1, 1, 1]),
    "transposed, dilated": conv("ConvTranspose", 3, 8, (3, 3), (7, 6), dilations=[2, 3], pads=[2, 3, 2, 3]),
    "transposed, volume": conv("ConvTranspose", 4, 3, (2, 3, 4), (3, 4, 5), strides=[2, 1, 2], pads=[0, 1, 1, 0, 1, 1]),
    "transposed, output shape": conv("ConvTranspose", 4, 3, (4, 4), (5, 6), strides=[2, 2], output_shape=[11, 12]),
    "transposed, same upper": conv("ConvTranspose", 4, 3, (3, 3), (5, 6), strides=[2, 2], auto_pad="SAME_UPPER"),
}

NORMALISATION = {"scale": numbers(5, seed=3), "shift": numbers(5, seed=4), "mean": numbers(5, seed=5),
                 "variance": abs(numbers(5, seed=6)) + np.float32(0.5)}
LAYER = {"w": numbers(4, 5, 3, 3), "scale4": numbers(4, seed=3), "shift4": numbers(4, seed=4), "mean4": numbers(4, seed=5),
         "variance4": abs(numbers(4, seed=6)) + np.float32(0.5)}
UPSCALED = {"roi": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32)}

OPERATORS = {
    "relu": chain(("Relu", [], {})),
    "leaky relu": chain(("LeakyRelu", [], {"alpha": 0.2})),
    "clip": chain(("Clip", ["low", "high"], {}), constants={"low": np.float32(-0.3), "high": np.float32(0.6)}),
    "sigmoid and tanh": chain(("Sigmoid", [], {}), ("Tanh", [], {})),
    "hard sigmoid": chain(("HardSigmoid", [], {"alpha": 0.3, "beta": 0.4})),
    "hard swish": chain(("HardSwish", [], {})),
    "prelu": chain(("PRelu", ["slopes"], {}), constants={"slopes": numbers(5, 1, 1, seed=3)}),
    "normalisation": chain(("BatchNormalization", list(NORMALISATION), {"epsilon": 1e-3}), constants=NORMALISATION),
    "a layer with an activation": chain(("Conv", ["w"], {}), ("LeakyRelu", [], {"alpha": 0.3}), constants=LAYER),
    "a layer with bounds": chain(("Conv", ["w"], {}), ("Clip", ["low", "high"], {}),
                                 constants=LAYER | {"low": np.float32(-0.3), "high": np.float32(0.6)}),
    "a transposed layer, normalised": chain(
        ("ConvTranspose", ["w"], {"strides": [2, 2]}), ("BatchNormalization", ["scale2", "shift2", "mean2", "variance2"], {}),
        ("Relu", [], {}), constants={"w": numbers(5, 2, 3, 3)} | {f"{name[:-1]}2": LAYER[name][:2] for name in LAYER if name != "w"}),
    "grouped and transposed, normalised": chain(
        ("ConvTranspose", ["w"], {"group": 2}), ("BatchNormalization", ["scale4", "shift4", "mean4", "variance4"], {}),
        shape=(1, 4, 5, 6), constants={**LAYER, "w": numbers(4, 2, 3, 3)}),
    "a number minus x": model([("Sub", ["one", "x"], "y", {})], {"x": [1, 5, 6, 7]}, {"one": np.float32(1)}),
    "x over a number": chain(("Div", ["three"], {}), constants={"three": np.float32(3)}),
    "a number over x": model([("Exp", ["x"], "e", {}), ("Div", ["one", "e"], "y", {})], {"x": [1, 5, 6, 7]}, {"one": np.float32(1)}),
    "one value a channel": chain(("Mul", ["c"], {}), constants={"c": numbers(1, 5, 1, 1, seed=3)}),
    "channels minus x": model([("Sub", ["c", "x"], "y", {})], {"x": [1, 5, 6, 7]}, {"c": numbers(5, 1, 1, seed=3)}),
    "one value a column": chain(("Add", ["c"], {}), constants={"c": numbers(7, seed=3)}),
    "a square": chain(("Pow", ["two"], {}), constants={"two": np.float32(2)}),
    "a root of squares": chain(("Pow", ["two"], {}), ("Pow", ["half"], {}), constants={"two": np.float32(2), "half": np.float32(0.5)}),
    "two inputs": model([("Sub", ["x", "z"], "y", {})], {"x": [1, 5, 6, 7], "z": [1, 5, 6, 7]}),
    "a gate of channels": model([("GlobalAveragePool", ["x"], "m", {}), ("Mul", ["x", "m"], "y", {})], {"x": [1, 5, 6, 7]}),
    "a gate on the left": model([("ReduceMax", ["x"], "m", {"axes": [2, 3]}), ("Sub", ["m", "x"], "y", {})], {"x": [1, 5, 6, 7]}),
    "a gate of rows": model([("ReduceMean", ["x"], "m", {"axes": [3]}), ("Div", ["x", "m"], "y", {})], {"x": [1, 5, 6, 7]}),
    "a gate of positions": model([("ReduceMean", ["x"], "m", {"axes": [1]}), ("Mul", ["x", "m"], "y", {})], {"x": [1, 5, 6, 7]}),
    "a value read twice": model([("Relu", ["x"], "r", {}), ("Sigmoid", ["r"], "s", {}), ("Add", ["r", "s"], "y", {})], {"x": [1, 5, 6, 7]}),
    "identity": model([("Identity", ["x"], "i", {}), ("Relu", ["i"], "r", {}), ("Add", ["r", "i"], "y", {})], {"x": [1, 5, 6, 7]}),
    "two outputs": model([("Relu", ["x"], "y", {}), ("Sigmoid", ["y"], "z", {})], {"x": [1, 5, 6, 7]}, outputs=("y", "z")),
    "concat of channels": model([("Relu", ["x"], "r", {}), ("Concat", ["x", "r"], "y", {"axis": 1})], {"x": [1, 5, 6, 7]}),
    "concat of columns": model([("Relu", ["x"], "r", {}), ("Concat", ["x", "r"], "y", {"axis": -1})], {"x": [1, 5, 6, 7]}),
    "max pool": chain(("MaxPool", [], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]})),
    "max pool, rounded up": chain(("MaxPool", [], {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}), shape=(1, 5, 7, 9)),
    "average pool": chain(("AveragePool", [], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]})),
    "average pool with padding": chain(("AveragePool", [], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1})),
    "pool of a sequence": chain(("MaxPool", [], {"kernel_shape": [2], "strides": [2]}), shape=(1, 5, 12)),
    "means": chain(("ReduceMean", [], {"axes": [2, 3], "keepdims": 1})),
    "largest of channels": chain(("ReduceMax", [], {"axes": [1], "keepdims": 0})),
    "nearest": chain(("Resize", ["", "scales"], {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
                     constants=UPSCALED),
    "linear": chain(("Resize", ["", "scales"], {"mode": "linear"}), constants=UPSCALED),
    "linear, aligned": chain(("Resize", ["", "scales"], {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
                             constants=UPSCALED),
    "pad": chain(("Pad", ["pads", "value"], {}), constants={"pads": np.array([0, 0, 1, 2, 0, 0, 3, 4]), "value": np.float32(0.5)}),
    "pad by reflection": chain(("Pad", ["pads"], {"mode": "reflect"}), constants={"pads": np.array([0, 0, 1, 2, 0, 0, 3, 4])}),
    "softmax": chain(("Softmax", [], {"axis": 1})),
    "softmax of rows": chain(("Softmax", [], {"axis": -1})),
    "reshape": chain(("Reshape", ["shape"], {}), constants={"shape": np.array([1, 10, 21])}),
    "flatten": chain(("Flatten", [], {})),
    "gemm": chain(("Gemm", ["w", "b"], {"transB": 1}), shape=(1, 6), constants={"w": numbers(4, 6), "b": numbers(4, seed=2)}),
    "product": chain(("MatMul", ["w"], {}), shape=(1, 5, 6), constants={"w": numbers(6, 4)}),
    "slice": chain(("Slice", ["from", "to", "axes"], {}),
                   constants={"from": np.array([0, 1, -4]), "to": np.array([9, 4, -1]), "axes": np.array([0, 1, 3])}),
    "one column": chain(("Gather", ["at"], {"axis": 3}), constants={"at": np.array(2)}),
    "channels in another order, then a layer": chain(("Gather", ["order"], {"axis": 1}), ("Conv", ["w"], {}),
                                                     constants=LAYER | {"order": np.array([3, 0, 4, 1, 2])}),
    "space to depth": chain(("SpaceToDepth", [], {"blocksize": 2}), shape=(1, 3, 6, 8)),
    "depth to space": chain(("DepthToSpace", [], {"blocksize": 2}), shape=(1, 8, 3, 4)),
    "depth to space, columns first": chain(("DepthToSpace", [], {"blocksize": 2, "mode": "CRD"}), shape=(1, 8, 3, 4)),
} | {f"transpose {perm}": chain(("Transpose", [], {"perm": [0, *perm]}))
     for perm in ((1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2), (3, 2, 1))}

REFUSED = {
    "batch=2": chain(("Relu", [], {}), shape=(2, 5, 6, 7)),
    "operator=Erf": chain(("Erf", [], {})),
    "negative padding": conv("ConvTranspose", 4, 3, (2, 2), (5, 6), strides=[2, 2], output_shape=[11, 12]),
    "axis=0": model([("Relu", ["x"], "r", {}), ("Concat", ["x", "r"], "y", {"axis": 0})], {"x": [1, 5, 6, 7]}),
    "steps=": chain(("Slice", ["from", "to", "axes", "steps"], {}),
                    constants={"from": np.array([0]), "to": np.array([6]), "axes": np.array([2]), "steps": np.array([2])}),
    "Resize: mode=cubic": chain(("Resize", ["", "scales"], {"mode": "cubic"}), constants=UPSCALED),
    "exponent=3": chain(("Pow", ["three"], {}), constants={"three": np.float32(3)}),
    "only constants": model([("MatMul", ["x", "x"], "y", {})], {"x": [1, 5, 6, 6]}),
}


class Converter(unittest.TestCase):
    def check(self, converted):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            onnx.save(converted, folder / "model.onnx")
            feeds = {value.name: numbers(*(dim.dim_value for dim in value.type.tensor_type.shape.dim), seed=9 + at)
                     for at, value in enumerate(converted.graph.input)}
            expected = answers(folder / "model.onnx", feeds)
            ncnn_model.convert(folder / "model.onnx", folder)
            engine = peer.Ncnn()
            engine.load(1, str(folder / "ncnn.param"))
            engine.feed(list(feeds.values()))
            for answer, right in zip(engine.run(), expected, strict=True):
                np.testing.assert_allclose(np.array(answer).reshape(right.shape), right, rtol=1e-5, atol=1e-5)

    def test_convolutions(self):
        for name, converted in CONVOLUTIONS.items():
            with self.subTest(name):
                self.check(converted)

    def test_operators(self):
        for name, converted in OPERATORS.items():
            with self.subTest(name):
                self.check(converted)

    def test_refusals(self):
        for reason, converted in REFUSED.items():
            with self.subTest(reason), tempfile.TemporaryDirectory() as folder:
                onnx.save(converted, Path(folder) / "model.onnx")
                with self.assertRaisesRegex(Unsupported, reason):
                    ncnn_model.convert(Path(folder) / "model.onnx", Path(folder))
                self.assertFalse((Path(folder) / "ncnn.param").exists())

    def test_an_activation_is_part_of_its_layer(self):
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(OPERATORS["a transposed layer, normalised"], Path(folder) / "model.onnx")
            ncnn_model.convert(Path(folder) / "model.onnx", Path(folder))
            layers = [line.split()[0] for line in (Path(folder) / "ncnn.param").read_text().splitlines()[2:]]
            self.assertEqual(layers, ["Input", "Deconvolution"])

    def test_nearest_neighbours_that_ncnn_has(self):
        same = ncnn_model.nearest_rounds_down
        self.assertTrue(same("asymmetric", "floor", [5, 6], [10, 18]))
        self.assertTrue(same("half_pixel", "round_prefer_floor", [5, 6], [15, 24]))
        self.assertFalse(same("asymmetric", "ceil", [5, 6], [10, 12]))
        self.assertFalse(same("asymmetric", "round_prefer_floor", [5, 6], [15, 18]))
        self.assertFalse(same("align_corners", "floor", [5, 6], [10, 12]))


if __name__ == "__main__":
    unittest.main()
