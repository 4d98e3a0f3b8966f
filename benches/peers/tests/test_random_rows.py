"""Rows that are drawn at random."""

import json
import unittest
from math import prod

import random_rows
import workloads

LISTS = json.loads(random_rows.FILE.read_text())


class RandomRows(unittest.TestCase):
    def test_a_seed_names_rows(self):
        self.assertEqual(random_rows.rows(7, 5), random_rows.rows(7, 5))
        self.assertNotEqual(random_rows.rows(7, 5), random_rows.rows(8, 5))

    def test_a_longer_draw_begins_with_the_shorter_one(self):
        long, short = random_rows.rows(7, 9), random_rows.rows(7, 5)
        self.assertEqual(long[:5] + long[9:14], short)

    def test_every_row_is_within_the_bounds(self):
        rows = random_rows.rows(1, 100)
        self.assertEqual(len({row["name"] for row in rows}), 200)
        for row in rows:
            with self.subTest(row["name"]):
                kind = "depthwise" if row["group"] in LISTS["depthwise_channels"] and row["group"] == row["in_channels"] else "dense"
                least, most = LISTS["multiply_adds"][kind]
                self.assertEqual(row["useful_flops"], workloads.useful_flops(row))
                self.assertEqual(row["output_spatial"], workloads.output_spatial(row))
                self.assertTrue(least <= row["useful_flops"] / 2 <= most)
                self.assertLessEqual(max(row["in_channels"], row["out_channels"]), LISTS["most_channels"])
                self.assertLessEqual(row["batch"] * row["out_channels"] * prod(row["output_spatial"]), LISTS["most_outputs"])
                self.assertEqual((row["in_channels"] % row["group"], row["out_channels"] % row["group"]), (0, 0))

    def test_sizes_follow_the_stride(self):
        for row in random_rows.rows(1, 100):
            for size, out, taps, stride in zip(row["input_spatial"], row["output_spatial"], row["kernel"], row["strides"]):
                with self.subTest(row["name"]):
                    if row["op"] == "conv":
                        # Taps in even number have no middle, and give one position less.
                        self.assertIn(-(-size // stride) - out, (0, 1))
                    elif taps >= stride and (taps - stride) % 2 == 0 and row["dilations"][0] == 1:
                        self.assertEqual(out, size * stride)

    def test_all_kinds_occur(self):
        rows = random_rows.rows(3, 200)
        self.assertEqual({len(row["kernel"]) for row in rows}, {1, 2, 3})
        self.assertTrue(any(row["batch"] > 1 for row in rows))
        self.assertTrue(any(1 < row["group"] < row["in_channels"] for row in rows))
        self.assertTrue(any(row["group"] == row["in_channels"] > 1 for row in rows))
        self.assertTrue(any(len(set(row["kernel"])) > 1 for row in rows))
        self.assertTrue(any(len(set(row["input_spatial"])) > 1 for row in rows))
        self.assertTrue(any(max(row["dilations"]) > 2 for row in rows))

    def test_titles(self):
        row = {"in_channels": 8, "out_channels": 16, "group": 2, "kernel": [4, 1], "strides": [2, 1], "dilations": [1, 1],
               "input_spatial": [5, 7], "batch": 8}
        self.assertEqual(random_rows.title(row), "8-16_g2_k4x1s2x1_5x7_n8")
        self.assertEqual(random_rows.title({**row, "group": 1, "kernel": [3, 3], "strides": [1, 1], "dilations": [2, 2], "batch": 1}),
                         "8-16_k3s1d2_5x7")


if __name__ == "__main__":
    unittest.main()
