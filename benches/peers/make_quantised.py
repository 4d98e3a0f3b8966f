"""Writes layers of 8-bit integers as ONNX models with an io.npz, for `run.py --folders`.

    make_quantised.py OUT          # one folder per layer, and the same layer in f32 beside it (`…_f32`)

A layer is DequantizeLinear, Conv or ConvTranspose, QuantizeLinear, as onnxruntime's tools write them: u8 data with a
zero point, i8 weights with one scale per output channel, an i32 bias. The expected output is computed from the
integers in numpy's float64. Compare with `--tolerance 0.02`, as engines round ties differently: a step of 255.
"""

import argparse
import zlib
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import reference

# name: (in channels, out channels, groups, kernel, stride, pad, input size, transposed)
LAYERS = {
    "resnet_3-64_224_k7s2": (3, 64, 1, 7, 2, 3, 224, False),
    "resnet_64-64_56_k3": (64, 64, 1, 3, 1, 1, 56, False),
    "resnet_64-256_56_k1": (64, 256, 1, 1, 1, 0, 56, False),
    "resnet_128-128_28_k3": (128, 128, 1, 3, 1, 1, 28, False),
    "resnet_256-512_28_k1s2": (256, 512, 1, 1, 2, 0, 28, False),
    "resnet_256-256_14_k3": (256, 256, 1, 3, 1, 1, 14, False),
    "resnet_1024-256_14_k1": (1024, 256, 1, 1, 1, 0, 14, False),
    "resnet_512-512_7_k3": (512, 512, 1, 3, 1, 1, 7, False),
    "mbv2_3-32_224_k3s2": (3, 32, 1, 3, 2, 1, 224, False),
    "mbv2_96-24_56_k1": (96, 24, 1, 1, 1, 0, 56, False),
    "mbv2_192-32_28_k1": (192, 32, 1, 1, 1, 0, 28, False),
    "mbv2_64-384_14_k1": (64, 384, 1, 1, 1, 0, 14, False),
    "mbv2_320-1280_7_k1": (320, 1280, 1, 1, 1, 0, 7, False),
    "mbv2_dw_32_112_k3": (32, 32, 32, 3, 1, 1, 112, False),
    "mbv2_dw_144_56_k3s2": (144, 144, 144, 3, 2, 1, 56, False),
    "mbv2_dw_384_14_k3": (384, 384, 384, 3, 1, 1, 14, False),
    "unet_128-64_56_k2s2_t": (128, 64, 1, 2, 2, 0, 56, True),
    "dcgan_128-64_16_k4s2_t": (128, 64, 1, 4, 2, 1, 16, True),
    "seg_64-32_56_k4s2_t": (64, 32, 1, 4, 2, 1, 56, True),
    "seg_256-128_28_k3s2_t": (256, 128, 1, 3, 2, 1, 28, True),
    "seg_dw_64_56_k4s2_t": (64, 64, 64, 4, 2, 1, 56, True),
}
DATA_SCALE, DATA_ZERO, OUT_ZERO = np.float32(0.02), np.uint8(113), np.uint8(121)


def convolved(x, w, layer):
    """The convolution of float64 arrays by the operators' definition."""
    _, _, group, _, stride, pad, _, transposed = layer
    attributes = {"group": group, "strides": [stride] * 2, "pads": [pad] * 4}
    return reference.convolve(reference.geometry("ConvTranspose" if transposed else "Conv", attributes, x, w), x, w)


def write(name, layer, out):
    inputs, outputs, group, kernel, stride, pad, size, transposed = layer
    random = np.random.default_rng(zlib.crc32(name.encode()))
    x = random.integers(0, 256, (1, inputs, size, size), np.uint8)
    shape = (inputs, outputs // group, kernel, kernel) if transposed else (outputs, inputs // group, kernel, kernel)
    w = random.integers(-127, 128, shape, np.int8)
    axis = 1 if transposed else 0
    scales = random.uniform(0.002, 0.006, shape[axis]).astype(np.float32)
    bias = random.integers(-2000, 2000, outputs, np.int32)
    of_output = np.tile(scales, group) if transposed else scales
    products = (DATA_SCALE.astype(np.float64) * of_output).astype(np.float32)
    reals = convolved(x.astype(np.float64) - DATA_ZERO, w.astype(np.float64), layer) + bias[:, None, None]
    reals = reals * (DATA_SCALE.astype(np.float64) * of_output)[:, None, None]
    step = np.float32(reals.std() * 4 / 128)
    y = np.clip(np.rint(reals / step) + OUT_ZERO, 0, 255).astype(np.uint8)
    constants = {"x_scale": DATA_SCALE, "x_zero": DATA_ZERO, "w": w, "w_scale": scales,
                 "w_zero": np.zeros(scales.shape, np.int8), "bias": bias, "bias_scale": products,
                 "bias_zero": np.zeros(outputs, np.int32), "y_scale": step, "y_zero": OUT_ZERO}
    geometry = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4, "group": group}
    operator = "ConvTranspose" if transposed else "Conv"
    save(out / name, constants, [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["x_real"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_real"], axis=axis),
        helper.make_node("DequantizeLinear", ["bias", "bias_scale", "bias_zero"], ["bias_real"], axis=0),
        helper.make_node(operator, ["x_real", "w_real", "bias_real"], ["y_real"], **geometry),
        helper.make_node("QuantizeLinear", ["y_real", "y_scale", "y_zero"], ["y"]),
    ], x, y)
    of_weights = scales.reshape([-1 if at == axis else 1 for at in range(4)])
    constants = {"w": w * of_weights, "bias": (bias * products).astype(np.float32)}
    x_real = (x.astype(np.float32) - DATA_ZERO) * DATA_SCALE
    save(out / f"{name}_f32", constants, [helper.make_node(operator, ["x", "w", "bias"], ["y"], **geometry)],
         x_real, reals.astype(np.float32))


def save(folder, constants, nodes, x, y):
    folder.mkdir(parents=True, exist_ok=True)
    of_type = {"uint8": TensorProto.UINT8, "float32": TensorProto.FLOAT}
    graph = helper.make_graph(
        nodes, folder.name,
        [helper.make_tensor_value_info("x", of_type[x.dtype.name], x.shape)],
        [helper.make_tensor_value_info("y", of_type[y.dtype.name], y.shape)],
        [numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, folder / "model.onnx")
    np.savez(folder / "io.npz", in__x=x, out__y=y)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for name, layer in LAYERS.items():
        write(name, layer, parser.parse_args().out)
