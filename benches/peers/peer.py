"""One peer runtime behind the line protocol of runner.rs. `peer.py` reads commands, writes answers, and times runs.

Each engine is used in its fastest mode that leaves a dense result in the model's own layout. onnxruntime allocates
the output of each run, and ncnn too. OpenVINO, MNN and oneDNN write into an output that they own.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from unsupported import Unsupported


class OnnxRuntime:
    def __init__(self):
        import onnxruntime
        self.library = onnxruntime

    def load(self, threads, path):
        options = self.library.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        self.session = self.library.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def feed(self, xs):
        self.inputs = {value.name: x for value, x in zip(self.session.get_inputs(), xs)}

    def run(self):
        return self.session.run(None, self.inputs)

    def answer(self):
        return self.run()[0]


class OpenVino:
    PRECISION = "f32"

    def __init__(self):
        # OpenVINO's telemetry would fork a process that reports to a server. Without the package it does neither.
        sys.modules["openvino_telemetry"] = None
        import openvino
        self.library = openvino

    def load(self, threads, path):
        config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": self.PRECISION, "INFERENCE_NUM_THREADS": threads}
        self.request = self.library.Core().compile_model(path, "CPU", config).create_infer_request()

    def feed(self, xs):
        for at, x in enumerate(xs):
            self.request.set_input_tensor(at, self.library.Tensor(x, shared_memory=True))

    def run(self):
        # Without share_outputs the result would be copied once more.
        return self.request.infer(None, share_outputs=True)

    def answer(self):
        self.run()
        return self.request.get_output_tensor(0).data


class OpenVinoBf16(OpenVino):
    # Its default on CPUs that multiply bf16.
    PRECISION = "bf16"


class Mnn:
    # This is the module interface. The older session interface may reuse the input's memory, so a second run would
    # compute on garbage unless the input is copied in again.
    HINTS = ()

    def __init__(self):
        import MNN
        self.library = MNN

    def load(self, threads, path):
        config = {"backend": "CPU", "numThread": threads, "precision": "high"}
        self.runtime = self.library.nn.create_runtime_manager((config,))
        for hint, value in self.HINTS:
            self.runtime.set_hint(hint, value)
        beside = Path(path).with_name("names.json")
        names = json.loads(beside.read_text()) if beside.exists() else {"inputs": ["x"], "outputs": ["y"]}
        self.module = self.library.nn.load_module_from_file(
            path, names["inputs"], names["outputs"], runtime_manager=self.runtime)

    def feed(self, xs):
        self.inputs = [self.library.expr.const(x, x.shape, self.library.expr.NCHW) for x in xs]

    def run(self):
        return self.module.onForward(self.inputs)

    def answer(self):
        return np.array(self.run()[0].read())


class ExactMnn(Mnn):
    # WINOGRAD_MEMORY_LEVEL = 1: small tiles only, whose errors are those of f32.
    HINTS = ((3, 1),)


class Ncnn:
    def __init__(self):
        import ncnn
        self.library = ncnn

    def load(self, threads, path):
        self.net = self.library.Net()
        options = self.net.opt
        options.num_threads = threads
        for name in dir(options):
            if name.startswith(("use_fp16", "use_bf16", "use_int8")):
                setattr(options, name, False)
        # As fast without, and the errors are up to ten times smaller.
        options.use_winograd63_convolution = False
        if self.net.load_param(path) or self.net.load_model(str(Path(path).with_suffix(".bin"))):
            raise Unsupported("ncnn does not load the converted model")
        names = json.loads(Path(path).with_suffix(".json").read_text())
        self.names, self.results = names["inputs"], names["outputs"]

    def feed(self, xs):
        # Without the clone the Mat would be a view of the array.
        self.inputs = [(name, self.library.Mat(np.ascontiguousarray(x[0])).clone()) for name, x in zip(self.names, xs)]

    def run(self):
        extractor = self.net.create_extractor()
        for name, x in self.inputs:
            extractor.input(name, x)
        outputs = []
        for name in self.results:
            # The other form of extract() returns a copy.
            output = self.library.Mat()
            if extractor.extract(name, output):
                raise RuntimeError("ncnn failed")
            outputs.append(output)
        return outputs

    def answer(self):
        return np.array(self.run()[0])


def one_dnn():
    # It needs modules that would take memory in the processes of other engines.
    import onednn_layer
    return onednn_layer.OneDnn()


ENGINES = {"onnxruntime": OnnxRuntime, "openvino": OpenVino, "openvino-bf16": OpenVinoBf16, "mnn": Mnn,
           "mnn-exact": ExactMnn, "ncnn": Ncnn, "onednn": one_dnn}


class Peer:
    def __init__(self, engine):
        self.make, self.xs = ENGINES[engine], None
        # Loads the library itself here, as `load` is for the model.
        self.engine = self.make()

    def command(self, line):
        verb, _, arguments = line.partition(" ")
        if verb == "inputs":
            self.xs = [np.load(path) for path in arguments.split(" ")]
            return []
        if verb == "load":
            threads, path = arguments.split(" ", 1)
            self.engine = None
            gc.collect()
            start = time.perf_counter_ns()
            engine = self.make()
            engine.load(int(threads), path)
            engine.feed(self.xs)
            self.engine = engine
            return [time.perf_counter_ns() - start]
        if verb == "output":
            np.save(arguments, self.engine.answer())
            return []
        if verb == "notes":
            return [self.engine.notes()]
        if verb == "time":
            warmup, n = map(int, arguments.split())
            return self.time(warmup, n)
        raise ValueError(f"command={verb}, expected inputs, load, output, notes or time")

    def time(self, warmup, n):
        run, clock, times = self.engine.run, time.perf_counter_ns, []
        for _ in range(warmup):
            run()
        for _ in range(n):
            start = clock()
            output = run()
            # Freeing the output is part of the run, as in runner.rs.
            del output
            times.append(clock() - start)
        return times


def main():
    # The engines print to standard output. They get standard error instead, and the protocol keeps the pipe.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    gc.disable()
    peer = Peer(sys.argv[1])
    for line in sys.stdin:
        try:
            answer = " ".join(["ok", *map(str, peer.command(line.rstrip("\n")))])
        except Unsupported as reason:
            answer = "error unsupported: " + " ".join(str(reason).split())
        except Exception as error:  # any exception of an engine is the row's result, and must not end this process
            answer = "error " + " ".join(f"{type(error).__name__}: {error}".split())
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
