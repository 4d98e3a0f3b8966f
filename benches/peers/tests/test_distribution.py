"""The summary of random rows, on times whose ratios are known."""

import tempfile
import unittest
from pathlib import Path

import distribution


def engine(*times, error=1e-7, right=True, failure=None):
    return {"failure": failure, "error": error, "right": right, "load_ms": 1.0, "rounds_us": list(times)}


def result(name, threads=1, **engines):
    return {"row": name, "group": "random", "threads": threads, "grouped": False, "useful_flops": 1, "peak_flops": 1, "engines": engines}


RESULTS = [
    # Twice as fast as ncnn, and slower than tract, which is no peer.
    result("r1_t000_a", plugin=engine(10, 10, 10), stock=engine(8, 8, 8), onnxruntime=engine(30, 30, 30), ncnn=engine(20, 20, 20)),
    # Half the speed of onnxruntime. MNN would be faster, but is wrong.
    result("r1_t001_b", plugin=engine(20, 20, 20, error=4e-7), stock=engine(40, 40, 40), onnxruntime=engine(10, 10, 10, error=2e-7),
           mnn=engine(right=False, error=1e-3)),
    # 0.97 of the speed of oneDNN in the middle round, and of the speed of tract in two rounds of five.
    result("r1_f000_c", plugin=engine(100, 100, 100, 100, 100, error=2.9e-7), stock=engine(90, 95, 105, 110, 120),
           onnxruntime=engine(200, 200, 200, 200, 200, error=1e-8), onednn=engine(80, 90, 97, 110, 120),
           ncnn=engine(right=False, failure="unsupported: batch=8")),
]


class Distribution(unittest.TestCase):
    def test_ratios_are_to_the_fastest_right_peer(self):
        ratios = distribution.ratios_to_peers(RESULTS, "plugin")
        self.assertEqual([(ratio.result["row"], ratio.rival, ratio.value) for ratio in ratios],
                         [("r1_t001_b", "onnxruntime", 0.5), ("r1_f000_c", "onednn", 0.97), ("r1_t000_a", "ncnn", 2.0)])
        self.assertEqual([distribution.behind(ratios, limit) for limit in (1, 0.95, 0.5)], [2, 1, 0])
        self.assertEqual(distribution.mean(ratios), f"{(0.5 * 0.97 * 2) ** (1 / 3):.2f}")

    def test_stock_is_apart(self):
        ratios = distribution.ratios_to("stock", RESULTS, "plugin")
        self.assertEqual([ratio.value for ratio in ratios], [0.8, 1.05, 2.0])
        self.assertEqual([ratio.result["row"] for ratio in distribution.slower_beyond_noise(ratios)], ["r1_t000_a"])
        noisy = distribution.ratios_to("stock", [result("r1_t002_d", plugin=engine(10, 10, 10, 10), stock=engine(8, 9, 9.8, 12))], "plugin")
        self.assertEqual((distribution.behind(noisy), distribution.slower_beyond_noise(noisy)), (1, []))

    def test_the_summary_has_a_line_per_direction(self):
        lines = distribution.summary(RESULTS, "plugin").splitlines()[2:]
        self.assertEqual(lines, ["| 2 transposed | 1.00× | 1 (50%) | 1 | 1 | 0.50× | 1.26 | 1 | 1 |",
                                 "| 1 forward | 0.97× | 1 (100%) | 0 | 0 | 0.97× | 1.05 | 0 | 0 |",
                                 "| 3 both | 0.99× | 2 (67%) | 1 | 1 | 0.50× | 1.19 | 1 | 1 |"])

    def test_each_engine_is_counted(self):
        lines = distribution.peers_table(RESULTS, "plugin").splitlines()
        self.assertIn("| onnxruntime | 3 | 0 | 0 | 1 | 1.44 |", lines)
        self.assertIn("| MNN | 0 | 1 | 0 | 0 | – |", lines)
        self.assertIn("| ncnn | 1 | 0 | 1 | 1 | 2.00 |", lines)

    def test_a_wrong_subject_has_no_ratio(self):
        wrong = result("r1_t003_e", plugin=engine(right=False, error=1.0), onnxruntime=engine(10, 10))
        self.assertEqual(distribution.ratios_to_peers([wrong], "plugin"), [])
        self.assertNotIn("both", distribution.summary([wrong], "plugin"))

    def test_errors_beside_onnxruntimes(self):
        # The last row errs 29 times as much, but is exact enough.
        self.assertEqual(distribution.errors_beyond(RESULTS, "plugin"), [("r1_t001_b", 4e-7, 2e-7)])

    def test_rows_that_two_threads_slow_down(self):
        rows = [result("r1_t000_a", threads, plugin=engine(*times), onnxruntime=engine(9, 9))
                for threads, times in ((1, (10, 10)), (2, (12, 12)))]
        rows += [result("r1_t001_b", threads, plugin=engine(*times), onnxruntime=engine(9, 9))
                 for threads, times in ((1, (10, 10)), (2, (10.4, 10.4)))]
        self.assertEqual(distribution.slower_with_more_threads(rows, "plugin"), [("r1_t000_a", 10, 12)])

    def test_the_worst_ten(self):
        rows = [result(f"r1_t{at:03}_x", plugin=engine(10, 10), ncnn=engine(5 + at, 5 + at)) for at in range(12)]
        lines = distribution.worst(distribution.ratios_to_peers(rows, "plugin")).splitlines()
        self.assertEqual(len(lines), 2 + 10)
        self.assertEqual(lines[2], "| r1_t000_x | 0.50 | 0.50–0.50 | ncnn | 5.0 | 10.0 |")

    def test_the_picture_has_a_bar_per_row(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "distribution.svg"
            distribution.chart(RESULTS + [result("r1_f000_c", 2, plugin=engine(10, 10), ncnn=engine(20, 20))], "plugin", path)
            picture = path.read_text()
            self.assertEqual(picture.count(f'fill="{distribution.FASTER}"/>'), 2)
            self.assertEqual(picture.count(f'fill="{distribution.SLOWER}"/>'), 2)
            self.assertIn("geometric mean 1.00×; behind on 1 of 2 (50%)", picture)

    def test_no_section_without_such_rows(self):
        self.assertEqual(distribution.section([{**RESULTS[0], "group": "listed"}], None, "plugin"), "")
        self.assertIn("Seed 4, 2 rows", distribution.section(RESULTS, [4, 2], "plugin"))


if __name__ == "__main__":
    unittest.main()
