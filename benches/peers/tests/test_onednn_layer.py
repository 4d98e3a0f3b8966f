"""oneDNN's answers are those of the definition in float64."""

import os
import tempfile
import unittest
from pathlib import Path

import numpy as np
import onnx

import make_models
import onednn_layer
import reference
from tests.models import model, numbers
from unsupported import Unsupported


def row(op, channels, outputs, kernel, spatial, **others):
    rank = len(kernel)
    return {"name": "test", "op": op, "layout": "NCX", "batch": 1, "in_channels": channels, "out_channels": outputs, "group": 1,
            "kernel": kernel, "strides": [1] * rank, "pads": [0] * 2 * rank, "dilations": [1] * rank, "output_padding": [0] * rank,
            "input_spatial": spatial, **others}


ROWS = {
    "one axis": row("conv", 6, 8, [5], [21], strides=[2], pads=[2, 1]),
    "dilated": row("conv", 5, 9, [3, 2], [12, 11], dilations=[2, 3], pads=[0, 1, 2, 3], batch=2),
    "groups": row("conv", 12, 8, [3, 3], [9, 8], group=4),
    "volume": row("conv", 3, 5, [3, 2, 1], [5, 6, 7]),
    "channels last": row("conv", 6, 8, [3, 3], [9, 8], layout="NXC", pads=[1, 1, 1, 1]),
    "transposed": row("conv_transpose", 8, 6, [4, 4], [5, 6], strides=[2, 2], pads=[1, 1, 1, 1]),
    "transposed, output padding": row("conv_transpose", 4, 6, [3, 5], [5, 6], strides=[2, 3], pads=[1, 0, 0, 2], output_padding=[1, 2]),
    "transposed, groups": row("conv_transpose", 12, 8, [3], [15], group=4, strides=[2]),
    "transposed, dilated": row("conv_transpose", 3, 8, [3, 3], [7, 6], dilations=[2, 3], batch=3),
    "transposed, volume": row("conv_transpose", 4, 3, [2, 3, 4], [3, 4, 5], strides=[2, 1, 2], pads=[0, 1, 1, 0, 1, 1]),
    "transposed, channels last": row("conv_transpose", 6, 8, [4, 4], [5, 6], strides=[2, 2], layout="NXC"),
}


@unittest.skipUnless(onednn_layer.LIBRARY.exists(), "setup.sh has not built the library")
class Layers(unittest.TestCase):
    def test_layers(self):
        engine = onednn_layer.OneDnn()
        for name, of in ROWS.items():
            for bias in (True, False):
                with self.subTest(name, bias=bias), tempfile.TemporaryDirectory() as folder:
                    x, path = self.write(of, bias, Path(folder))
                    engine.load(len(os.sched_getaffinity(0)), str(path))
                    engine.feed([x])
                    expected, _ = reference.evaluate(onnx.load(path), x)
                    np.testing.assert_allclose(engine.answer(), expected, rtol=1e-4, atol=1e-5)

    def write(self, of, bias, folder):
        shape = make_models.workloads.input_shape(of)
        builder = make_models.Builder(1, shape)
        convolution = builder.convolution
        builder.convolution = lambda row, x: convolution(row, x, bias=bias)
        make_models.operator(of, builder)
        onnx.save(onnx.shape_inference.infer_shapes(builder.model()), folder / "model.onnx")
        return numbers(*shape), folder / "model.onnx"

    def test_refusals(self):
        constants = {"w": numbers(4, 5, 3, 3)}
        two = model([("Conv", ["x", "w"], "a", {}), ("Relu", ["a"], "y", {})], {"x": [1, 5, 6, 7]}, constants)
        automatic = model([("Conv", ["x", "w"], "y", {"auto_pad": "SAME_UPPER"})], {"x": [1, 5, 6, 7]}, constants)
        computed = model([("Conv", ["x", "w"], "y", {})], {"x": [1, 5, 6, 7], "w": [4, 5, 3, 3]})
        for reason, refused in (("nodes=2", two), ("auto_pad", automatic), ("no constant", computed)):
            with self.subTest(reason), tempfile.TemporaryDirectory() as folder:
                onnx.save(refused, Path(folder) / "model.onnx")
                with self.assertRaisesRegex(Unsupported, reason):
                    onednn_layer.read(Path(folder) / "model.onnx")


if __name__ == "__main__":
    unittest.main()
