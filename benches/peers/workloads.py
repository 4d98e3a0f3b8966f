"""Reads benches/workloads.json and knows the arithmetic of its rows."""

import json
from fnmatch import fnmatch
from math import prod
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "workloads.json"


def load():
    """All rows, operators first. A row is an operator when it has "op", else a whole model."""
    data = json.loads(FILE.read_text())
    if data["format"] != 1:
        raise SystemExit(f"workloads.json: format={data['format']}, this script reads 1")
    for row in data["operators"]:
        for key, computed in (("output_spatial", output_spatial(row)), ("useful_flops", useful_flops(row))):
            if row[key] != computed:
                raise SystemExit(f"workloads.json: {row['name']}: {key}={row[key]}, computed {computed}")
    return data["operators"] + data["models"]


def of_folders(folders):
    """A row for each folder with a model.onnx and an io.npz (in__NAME, out__NAME) beside it, as models/ has them."""
    rows = []
    for folder in map(Path, folders):
        if not (folder / "model.onnx").exists() or not (folder / "io.npz").exists():
            raise SystemExit(f"folders={folder}: no model.onnx with an io.npz")
        rows.append({"name": folder.resolve().name, "folder": str(folder.resolve()), "useful_flops": None})
    return rows


def select(rows, globs, group):
    """Rows whose name matches one of the comma-separated globs, of one group (its "set", or "models") or all."""
    chosen = [row for row in rows if any(fnmatch(row["name"], glob) for glob in globs.split(","))]
    return [row for row in chosen if group in ("all", group_of(row))]


def group_of(row):
    if "folder" in row:
        return "files"
    return row["set"] if "op" in row else "models"


def axes(row):
    """(input, kernel, stride, dilation, pad begin, pad end, output padding) of each spatial axis."""
    rank = len(row["kernel"])
    return zip(row["input_spatial"], row["kernel"], row["strides"], row["dilations"],
               row["pads"][:rank], row["pads"][rank:], row["output_padding"])


def output_spatial(row):
    if row["op"] == "conv_transpose":
        return [s * (x - 1) + d * (k - 1) + 1 + op - pb - pe for x, k, s, d, pb, pe, op in axes(row)]
    return [(x + pb + pe - d * (k - 1) - 1) // s + 1 for x, k, s, d, pb, pe, _ in axes(row)]


def useful_flops(row):
    """Twice the multiply-adds between a real input and a real output position."""
    pairs = 1
    for (x, k, s, d, pb, _, _), out in zip(axes(row), output_spatial(row)):
        # A transposed convolution is a convolution with input and output swapped.
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
    """ONNX's layout: [in, out / group, taps] transposed, [out, in / group, taps] forward."""
    first, second = row["in_channels"], row["out_channels"]
    if row["op"] == "conv":
        first, second = second, first
    return [first, second // row["group"], *row["kernel"]]


def fan_in(row):
    """Products that an inner output element sums."""
    taps = prod(row["kernel"])
    if row["op"] == "conv_transpose":
        taps /= prod(row["strides"])
    return max(1.0, row["in_channels"] // row["group"] * taps)
