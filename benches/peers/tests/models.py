"""Small models for the tests, and what onnxruntime answers to them."""

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper


def model(nodes, inputs, constants=None, outputs=("y",)):
    """Returns a model of nodes (op type, inputs, output, attributes). Sizes of outputs are left open."""
    graph = helper.make_graph(
        [helper.make_node(kind, ins, [out], **attributes) for kind, ins, out, attributes in nodes], "test",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def numbers(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def answers(path, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)
