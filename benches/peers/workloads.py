"""Reads benches/workloads.json and computes the sizes of its rows."""

import json
from fnmatch import fnmatch
from math import prod
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "workloads.json"


def load():
    """Returns all rows, operators first. A row with "op" is an operator, any other row is a whole model."""
    data = json.loads(FILE.read_text())
    if data["format"] != 1:
        raise SystemExit(f"workloads.json: format={data['format']}, this script reads 1")
    for row in data["operators"]:
        for key, computed in (("output_spatial", output_spatial(row)), ("useful_flops", useful_flops(row))):
            if row[key] != computed:
                raise SystemExit(f"workloads.json: {row['name']}: {key}={row[key]}, computed {computed}")
    return data["operators"] + data["models"]


def of_folders(folders):
    """Returns a row for each folder with a model.onnx and an io.npz (in__NAME, out__NAME), as in models/.

    A folder without a model stands for the folders in it that have both.
    """
    holds_model = lambda folder: (folder / "model.onnx").exists() and (folder / "io.npz").exists()
    rows = []
    for folder in map(Path, folders):
        found = [folder] if holds_model(folder) else sorted(inner for inner in folder.glob("*/") if holds_model(inner))
        if not found:
            raise SystemExit(f"folders={folder}: no model.onnx with an io.npz")
        rows += [{"name": one.resolve().name, "folder": str(one.resolve()), "useful_flops": None} for one in found]
    return rows


def select(rows, globs, group):
    """Returns rows whose name matches a comma-separated list of globs, of one group (its "set", or "models") or all."""
    chosen = [row for row in rows if any(fnmatch(row["name"], glob) for glob in globs.split(","))]
    return [row for row in chosen if group in ("all", group_of(row))]


def group_of(row):
    if "folder" in row:
        return "files"
    return row["set"] if "op" in row else "models"


def axes(row):
    """Returns (input, kernel, stride, dilation, pad begin, pad end, output padding) of each spatial axis."""
    rank = len(row["kernel"])
    return zip(row["input_spatial"], row["kernel"], row["strides"], row["dilations"],
               row["pads"][:rank], row["pads"][rank:], row["output_padding"])


def output_spatial(row):
    if row["op"] == "conv_transpose":
        return [s * (x - 1) + d * (k - 1) + 1 + op - pb - pe for x, k, s, d, pb, pe, op in axes(row)]
    return [(x + pb + pe - d * (k - 1) - 1) // s + 1 for x, k, s, d, pb, pe, _ in axes(row)]


def useful_flops(row):
    """Returns twice the number of multiply-adds between a real input and a real output position."""
    pairs = 1
    for (x, k, s, d, pb, _, _), out in zip(axes(row), output_spatial(row)):
        # A transposed convolution is a convolution with input and output exchanged.
        long, short = (out, x) if row["op"] == "conv_transpose" else (x, out)
        pairs *= sum(0 <= i * s + tap * d - pb < long for i in range(short) for tap in range(k))
    return 2 * row["batch"] * row["in_channels"] * (row["out_channels"] // row["group"]) * pairs


def input_shape(row):
    if "op" not in row:
        return row["input"]
    if row["layout"] == "NXC":
        return [row["batch"], *row["input_spatial"], row["in_channels"]]
    return [row["batch"], row["in_channels"], *row["input_spatial"]]


def weight_shape(row):
    """Returns ONNX's shape of the weights: [in, out / group, taps] transposed, [out, in / group, taps] forward."""
    first, second = row["in_channels"], row["out_channels"]
    if row["op"] == "conv":
        first, second = second, first
    return [first, second // row["group"], *row["kernel"]]


def filter_by_group(row, weights):
    """Returns ONNX's weights of either direction as [group, out / group, in / group, taps]."""
    group = row["group"]
    outputs, inputs = row["out_channels"] // group, row["in_channels"] // group
    if row["op"] == "conv_transpose":
        return weights.reshape(group, inputs, outputs, *row["kernel"]).swapaxes(1, 2)
    return weights.reshape(group, outputs, inputs, *row["kernel"])


def fan_in(row):
    """Returns the number of products that an inner output element sums."""
    taps = prod(row["kernel"])
    if row["op"] == "conv_transpose":
        taps /= prod(row["strides"])
    return max(1.0, row["in_channels"] // row["group"] * taps)
