"""Draws rows from benches/distribution.json.

    random_rows.py SEED N     prints N rows of each direction
"""

import argparse
import json
from math import prod
from pathlib import Path

import workloads

FILE = Path(__file__).resolve().parent.parent / "distribution.json"
DIRECTIONS = {"transposed": "conv_transpose", "forward": "conv"}


class Draw:
    """The generator of planner.rs, so that a seed means the same rows on every machine and version of Python."""

    def __init__(self, seed):
        self.state = seed % 2**64

    def of(self, values):
        self.state = (self.state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        return values[(self.state >> 33) % len(values)]


def rows(seed, count):
    """Returns `count` rows of each direction. The first rows of a longer draw from the same seed are the same."""
    lists = json.loads(FILE.read_text())
    return [row for at, direction in enumerate(DIRECTIONS) for row in of_direction(lists, direction, seed, at, count)]


def of_direction(lists, direction, seed, at, count):
    draw, found = Draw(2 * seed + at), []
    while len(found) < count:
        row = layer(lists, direction, draw)
        if row:
            row["name"] = f"r{seed}_{direction[0]}{len(found):03}_{title(row)}"
            found.append(row)
    return found


def layer(lists, direction, draw):
    """Draws one layer, or none if it is outside the bounds. The order of the draws is part of what a seed means."""
    rank, batch = draw.of(lists["ranks"]), draw.of(lists["batches"])
    kind = "depthwise" if draw.of(lists["depthwise"]) else "dense"
    if kind == "depthwise":
        group, inputs, outputs = draw.of(lists["depthwise_channels"]), 1, draw.of(lists["depthwise_multipliers"])
    else:
        group, inputs, outputs = draw.of(lists["groups"]), draw.of(lists["in_channels"]), draw.of(lists["out_channels"])
    taps, stride, dilation = draw.of(lists["taps"][direction])
    size, (numerator, denominator) = draw.of(lists["sizes"][rank - 1]), draw.of(lists["aspects"])
    source = [size] * rank
    if rank > 1:
        source[-1] = max(1, size * numerator // denominator)
    kernel, strides, dilations = [taps] * rank, [stride] * rank, [dilation] * rank
    if rank == 2 and draw.of(lists["one_axis"][kind]):
        other = draw.of([0, 1])
        kernel[other] = strides[other] = dilations[other] = 1
    pads = [padding(direction, *axis) for axis in zip(kernel, strides, dilations)]
    row = {
        "name": None, "set": "random", "network": "drawn at random", "op": DIRECTIONS[direction], "layout": "NCX", "batch": batch,
        "in_channels": inputs * group, "out_channels": outputs * group, "group": group, "kernel": kernel, "strides": strides,
        "pads": pads * 2, "dilations": dilations, "output_padding": [0] * rank, "input_spatial": source,
    }
    row["output_spatial"] = workloads.output_spatial(row)
    if kind == "depthwise" and taps == 1:
        return None
    if taps > lists["most_taps"][rank - 1] or max(row["in_channels"], row["out_channels"]) > lists["most_channels"]:
        return None
    if min(row["output_spatial"]) < 1 or prod([batch, row["out_channels"], *row["output_spatial"]]) > lists["most_outputs"]:
        return None
    row["useful_flops"] = workloads.useful_flops(row)
    least, most = lists["multiply_adds"][kind]
    return row if least <= row["useful_flops"] // 2 <= most else None


def padding(direction, taps, stride, dilation):
    reach = (taps - 1) * dilation
    return reach // 2 if direction == "forward" else max(0, reach + 1 - stride) // 2


def title(row):
    """Returns the shape in few characters, as in 384-96_k5s3_4x3."""
    def sizes(values):
        return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))

    parts = f"{row['in_channels']}-{row['out_channels']}"
    if row["group"] > 1:
        parts += f"_g{row['group']}"
    parts += f"_k{sizes(row['kernel'])}s{sizes(row['strides'])}"
    if max(row["dilations"]) > 1:
        parts += f"d{sizes(row['dilations'])}"
    parts += "_" + "x".join(map(str, row["input_spatial"]))
    return parts if row["batch"] == 1 else f"{parts}_n{row['batch']}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    arguments = parser.parse_args()
    for row in rows(arguments.seed, arguments.count):
        print(json.dumps(row))
