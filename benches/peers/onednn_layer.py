"""Reads a model of one convolution and computes it with oneDNN, through the library that setup.sh builds of onednn.cpp."""

import ctypes
import os
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

import reference
import workloads
from unsupported import Unsupported

LIBRARY = Path(sys.prefix) / "lib" / "libonednn_layer.so"
# SYCL's CPU device, which the loader of OpenCL finds by this variable.
DEVICE = Path(sys.prefix) / "lib" / "libintelocl.so"
MAX_RANK = 3


class Geometry(ctypes.Structure):
    """The structure of the same name in onednn.cpp."""
    _fields_ = [(name, ctypes.c_int64) for name in ("transposed", "channels_last", "rank", "batch", "in_channels",
                                                    "out_channels", "group")]
    _fields_ += [(name, ctypes.c_int64 * MAX_RANK) for name in ("kernel", "strides", "dilations", "begin_pads", "end_pads",
                                                                "input", "output")]

    def __init__(self, row, channels_last):
        rank = len(row["kernel"])
        begin, end = row["pads"][:rank], [pad - extra for pad, extra in zip(row["pads"][rank:], row["output_padding"])]
        sizes = lambda values: (ctypes.c_int64 * MAX_RANK)(*values)
        super().__init__(row["op"] == "conv_transpose", channels_last, rank, row["batch"], row["in_channels"],
                         row["out_channels"], row["group"], sizes(row["kernel"]), sizes(row["strides"]), sizes(row["dilations"]),
                         sizes(begin), sizes(end), sizes(row["input_spatial"]), sizes(workloads.output_spatial(row)))


def library():
    if not LIBRARY.exists():
        raise SystemExit("onednn: not built in")
    os.environ["OCL_ICD_FILENAMES"] = str(DEVICE)
    try:
        loaded = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise SystemExit(f"onednn: {error}") from error
    pointer = ctypes.POINTER(ctypes.c_float)
    for name, result, arguments in (
            ("create", ctypes.c_void_p, [ctypes.POINTER(Geometry), pointer, pointer, pointer]),
            ("error", ctypes.c_char_p, []), ("description", ctypes.c_char_p, [ctypes.c_void_p]),
            ("run", ctypes.c_int, [ctypes.c_void_p]), ("output", pointer, [ctypes.c_void_p]),
            ("destroy", None, [ctypes.c_void_p])):
        function = getattr(loaded, "onednn_" + name)
        function.restype, function.argtypes = result, arguments
    return loaded


def read(path):
    """Returns the layer of a model with one convolution: its row without sizes of data, filter, bias, and layout.

    A convolution between two Transposes that move the channels from the last axis and back is a layer on channels-last data.
    """
    graph = onnx.load(path).graph
    kinds = [node.op_type for node in graph.node]
    channels_last = len(kinds) == 3 and kinds[0] == kinds[2] == "Transpose"
    nodes = graph.node[1:2] if channels_last else graph.node
    if len(nodes) != 1 or nodes[0].op_type not in ("Conv", "ConvTranspose"):
        raise Unsupported(f"nodes={len(kinds)}, only single layers")
    node = nodes[0]
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET" or "output_shape" in attributes:
        raise Unsupported(f"attributes={sorted(attributes)}, only explicit padding")
    filter_and_bias = [constants.get(name) for name in node.input[1:]]
    if any(constant is None for constant in filter_and_bias):
        raise Unsupported("a filter or bias that is no constant")
    return node.op_type, attributes, filter_and_bias[0], *(filter_and_bias[1:] or [None]), channels_last


class OneDnn:
    def __init__(self):
        self.layer, self.library = None, library()

    def load(self, threads, path):
        # TBB has as many threads as the process has CPUs. run.py starts it on that many.
        if len(os.sched_getaffinity(0)) != threads:
            raise ValueError(f"threads={threads}, the process has {len(os.sched_getaffinity(0))} CPUs")
        self.model = read(path)

    def feed(self, xs):
        op_type, attributes, weights, bias, channels_last = self.model
        x = np.ascontiguousarray(xs[0], np.float32)
        row = reference.geometry(op_type, attributes, np.moveaxis(x, -1, 1) if channels_last else x, weights)
        weights = np.ascontiguousarray(workloads.filter_by_group(row, weights), np.float32)
        bias = np.zeros(row["out_channels"], np.float32) if bias is None else np.ascontiguousarray(bias, np.float32)
        pointer = lambda array: array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self.layer = self.library.onednn_create(Geometry(row, channels_last), pointer(x), pointer(weights), pointer(bias))
        if not self.layer:
            raise Unsupported(self.library.onednn_error().decode())
        spatial = workloads.output_spatial(row)
        self.shape = [row["batch"], *spatial, row["out_channels"]] if channels_last else [row["batch"], row["out_channels"], *spatial]

    def run(self):
        if self.library.onednn_run(self.layer):
            raise RuntimeError(self.library.onednn_error().decode())

    def answer(self):
        self.run()
        return np.ctypeslib.as_array(self.library.onednn_output(self.layer), self.shape).copy()

    def notes(self):
        return self.library.onednn_description(self.layer).decode()

    def __del__(self):
        if self.layer:
            self.library.onednn_destroy(self.layer)
