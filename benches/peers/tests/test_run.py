"""Which engines count: wrong ones, exact modes, and rows that an engine can't do."""

import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

import make_models
import report
import run
from worker import EngineError


class Scripted:
    """Stands for the process of an engine."""

    def resume(self):
        pass

    stop = resume


class Bench:
    """Hands out one scripted process, and remembers which engines were asked for."""

    def __init__(self):
        self.asked = []

    def worker(self, engine, label):
        self.asked.append((engine, label))
        return Scripted()


def contender(engine):
    return run.Contender(Bench(), engine, engine, {"name": "row", "op": "conv"})


class Engines(unittest.TestCase):
    def test_the_exact_mode_takes_the_place_of_a_wrong_answer(self):
        mnn = contender("mnn")
        mnn.error, mnn.right = 2e-3, False
        self.assertTrue(mnn.wrong)
        mnn.use_exact_mode()
        mnn.guard(lambda worker: None)
        self.assertEqual(mnn.bench.asked, [("mnn-exact", "mnn-exact")])
        result = mnn.result()
        self.assertEqual((result["mode"], result["error_of_fast_mode"]), ("exact", 2e-3))

    def test_mnn_counts_below_a_smaller_error(self):
        limit = lambda engine: run.TOLERANCES.get(engine, run.TOLERANCE)
        self.assertEqual([limit(engine) for engine in ("mnn", "mnn-exact", "ncnn", "plugin")], [1e-5, 1e-5, 1e-4, 1e-4])

    def test_a_refusal_is_no_wrong_answer(self):
        ncnn = contender("ncnn")

        def refuse(worker):
            raise EngineError("unsupported: batch=2, only one image at a time")

        ncnn.guard(refuse)
        self.assertFalse(ncnn.wrong)
        self.assertFalse(ncnn.right)
        self.assertEqual(report.cell(ncnn.result()), "can't")

    def test_a_converter_that_fails_is_the_rows_result(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "model.onnx").write_bytes(b"no model")
            self.assertTrue(make_models.convert_to_ncnn(Path(folder)).startswith("the ncnn converter failed: "))

    def test_cells(self):
        right = {"failure": None, "error": 2.3e-7, "right": True, "rounds_us": [3.0, 5.0, 4.0]}
        self.assertEqual(report.cell(right), "4.0 (2e-07)")
        self.assertEqual(report.cell(right | {"mode": "exact"}), "4.0 (2e-07, exact)")
        self.assertEqual(report.cell({"failure": None, "error": 0.05, "right": False, "rounds_us": []}), "wrong (5e-02)")
        self.assertEqual(report.cell({"failure": "crashed", "error": None, "right": False, "rounds_us": []}), "failed")

    def test_failures_are_listed_once(self):
        unable = {"failure": "unsupported: batch=2", "error": None, "right": False, "rounds_us": []}
        rows = [{"row": name, "engines": {"ncnn": unable}} for name in ("a", "b")]
        self.assertIn("- ncnn: unsupported: batch=2: a, b\n", report.remarks(rows))

    def test_threads_of_engines_that_count_cpus(self):
        started = []
        original, run.Worker = run.Worker, lambda command, log, cpus, environment: started.append(cpus) or SimpleNamespace(
            alive=lambda: True, close=lambda: None)
        try:
            bench = run.Bench(SimpleNamespace(cpus=[0, 1], keep_pages=False), "runner", "scratch")
            for threads in (1, 2):
                bench.use(threads)
                bench.worker("onednn")
                bench.worker("onednn")
                bench.worker("ncnn")
            self.assertEqual(started, [[0], [0, 1], [0, 1], [0, 1]])
        finally:
            run.Worker = original


if __name__ == "__main__":
    unittest.main()
