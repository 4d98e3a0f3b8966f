#!/usr/bin/env python3
"""Writes tests/data/conformance.json: cases of every dialect with their results, from the definition alone.

    python3 tools/conformance_cases.py           writes the file
    python3 tools/conformance_cases.py --check   compares the committed file with a new one

It needs Python only. It computes the results element by element from the operators' definition, without the crate or
another runtime. All values are small integers, so that every type holds them exactly.

A tensor is `{dtype, shape, data}` or `{dtype, shape, seed}`. A seed gives values between -4 and 4.
"""

import argparse
import itertools
import json
import pathlib
import sys

FILE = pathlib.Path(__file__).resolve().parent.parent / "tests/data/conformance.json"
# The largest magnitude up to which a type holds every integer.
EXACT = {"f16": 2**11, "f32": 2**24, "f64": 2**53, "i8": 127, "i16": 2**15 - 1, "i32": 2**31 - 1, "i64": 2**53}
EXACT |= {"u8": 255, "u16": 2**16 - 1, "u32": 2**32 - 1, "u64": 2**53}


class Draw:
    """Random choices that do not depend on the version of Python."""

    def __init__(self, seed):
        self.state = seed * 0x9E3779B97F4A7C15 % 2**64 or 1

    def below(self, end):
        self.state ^= self.state << 13 & 2**64 - 1
        self.state ^= self.state >> 7
        self.state ^= self.state << 17 & 2**64 - 1
        return (self.state >> 11) % end

    def of(self, *choices):
        return choices[self.below(len(choices))]

    def between(self, first, last):
        return first + self.below(last - first + 1)


class Array:
    def __init__(self, shape, data=None):
        self.shape = list(shape)
        size = 1
        for dim in shape:
            size *= dim
        self.data = [0] * size if data is None else data

    def at(self, *index):
        flat = 0
        for dim, i in zip(self.shape, index, strict=True):
            assert 0 <= i < dim
            flat = flat * dim + i
        return flat

    def __getitem__(self, index):
        return self.data[self.at(*index)]

    def add(self, index, value):
        self.data[self.at(*index)] += value


def seeded(shape, seed, unsigned):
    array, state = Array(shape), seed
    for at in range(len(array.data)):
        state = (state * 1103515245 + 12345) % 2**31
        value = (state >> 16) % 9 - 4
        array.data[at] = value % 3 if unsigned else value
    return array


def stored(array, dtype, seed, unsigned):
    """Returns a tensor in the file's form. It is given by its seed if the reader can draw the same values."""
    tensor = {"dtype": dtype, "shape": array.shape}
    return tensor | ({"data": array.data} if unsigned else {"seed": seed})


# ---------------------------------------------------------------- the definition


def positions(sizes):
    return itertools.product(*(range(size) for size in sizes))


def transposed(x, w, bias, geometry, out, begin):
    """Computes a transposed convolution, channels first.

    `x(n, c, i)` and `w(g, ci, co, k)` are functions. `out` and `begin` have one value per spatial axis.
    """
    batch, group, ci, co, spatial, kernel, strides, dilations = geometry
    y = Array([batch, group * co, *out])
    for n, g in itertools.product(range(batch), range(group)):
        for c, i in itertools.product(range(ci), positions(spatial)):
            value = x(n, g * ci + c, i)
            for k in positions(kernel):
                at = [i * s + k * d - b for i, s, k, d, b in zip(i, strides, k, dilations, begin)]
                if all(0 <= p < size for p, size in zip(at, out)):
                    for o in range(co):
                        y.add((n, g * co + o, *at), value * w(g, c, o, k))
    return with_bias(y, bias)


def forward(x, w, bias, geometry, out, begin):
    """Computes a forward convolution, with the same arguments."""
    batch, group, ci, co, spatial, kernel, strides, dilations = geometry
    y = Array([batch, group * co, *out])
    for n, g, o in itertools.product(range(batch), range(group), range(co)):
        for at, c, k in itertools.product(positions(out), range(ci), positions(kernel)):
            i = [p * s + k * d - b for p, s, k, d, b in zip(at, strides, k, dilations, begin)]
            if all(0 <= p < size for p, size in zip(i, spatial)):
                y.add((n, g * co + o, *at), x(n, g * ci + c, i) * w(g, c, o, k))
    return with_bias(y, bias)


def with_bias(y, bias):
    if bias is not None:
        for index in positions(y.shape):
            y.add(index, bias[index[1]])
    return y


def halves(cut):
    return cut // 2, cut - cut // 2


def extent(kernel, dilation):
    return (kernel - 1) * dilation + 1


def full(size, kernel, stride, dilation, output_padding):
    return stride * (size - 1) + extent(kernel, dilation) + output_padding


def onnx_axis(axis, rule, asked):
    """Returns output size and crop at the beginning of an axis, for ONNX's ConvTranspose."""
    whole = full(axis["size"], axis["kernel"], axis["stride"], axis["dilation"], axis["output_padding"])
    if asked is not None:
        small, big = halves(max(whole - asked, 0))
        return asked, small if rule == "SAME_UPPER" else big
    if rule == "VALID":
        return whole, 0
    if rule in ("SAME_UPPER", "SAME_LOWER"):
        out = min(whole, axis["size"] * axis["stride"])
        small, big = halves(whole - out)
        return out, small if rule == "SAME_UPPER" else big
    return whole - axis["begin"] - axis["end"], axis["begin"]


def openvino_axis(axis, rule, asked):
    """Returns the same for OpenVINO's transposed operators."""
    whole = full(axis["size"], axis["kernel"], axis["stride"], axis["dilation"], axis["output_padding"])
    if asked is not None:
        small, big = halves(max(whole - asked, 0))
        return asked, big if rule == "same_upper" else small
    if rule == "explicit":
        return whole - axis["begin"] - axis["end"], axis["begin"]
    return whole, 0


def onednn_axis(axis, rule, _asked):
    """Returns the same for oneDNN Graph's ConvTranspose."""
    whole = full(axis["size"], axis["kernel"], axis["stride"], axis["dilation"], axis["output_padding"])
    if rule == "None":
        return whole - axis["begin"] - axis["end"], axis["begin"]
    if rule == "VALID":
        return whole, 0
    cut = max(extent(axis["kernel"], axis["dilation"]) - axis["stride"], 0)
    small, big = halves(cut)
    return whole - cut, small if rule == "SAME_UPPER" else big


def forward_axis(axis, rule, _asked):
    """Returns the same for OpenVINO's forward operators."""
    size, stride, reach = axis["size"], axis["stride"], extent(axis["kernel"], axis["dilation"])
    if rule in ("explicit", "valid"):
        begin, end = (axis["begin"], axis["end"]) if rule == "explicit" else (0, 0)
        return (size + begin + end - reach) // stride + 1 if size + begin + end >= reach else 0, begin
    out = -(-size // stride)
    small, big = halves(max((out - 1) * stride + reach - size, 0))
    return out, small if rule == "same_upper" else big


# ---------------------------------------------------------------- drawing cases


def axes_of(draw, rank, rule, is_forward):
    axes = []
    for _ in range(rank):
        stride, dilation = draw.between(1, 3), draw.of(1, 1, 2, 3)
        kernel = draw.between(1, 4 if rank < 3 else 3)
        reach = extent(kernel, dilation)
        explicit = rule in ("NOTSET", "", None, "explicit", "None")
        axes.append({
            "size": draw.between(max(1, reach - 1), reach + 3) if is_forward else draw.between(1, 5 if rank < 3 else 3),
            "kernel": kernel,
            "stride": stride,
            "dilation": dilation,
            "begin": draw.between(0, 2) if explicit else 0,
            "end": draw.between(0, 2) if explicit else 0,
            "output_padding": 0 if is_forward or draw.below(2) else draw.below(max(stride, dilation)),
        })
    return axes


def case(draw, dialect, rule, rank, group, dtype="f32", op="ConvTranspose", formats=("NCX", None), asks=None):
    """Draws a case. Returns none if the drawn sizes give no output, or one that the type does not hold."""
    is_forward = op in ("Convolution", "GroupConvolution")
    axes = axes_of(draw, rank, rule, is_forward)
    list_of = lambda key: [axis[key] for axis in axes]
    ci, co, batch = draw.between(1, 3), draw.between(1, 3), draw.of(1, 1, 2)
    asked = [None] * rank
    if asks:
        # Less than the whole output, with odd differences among them, and sometimes more.
        wholes = [full(a["size"], a["kernel"], a["stride"], a["dilation"], a["output_padding"]) for a in axes]
        asked = [max(1, whole - draw.of(0, 1, 1, 2, 3, 3, -1)) for whole in wholes]
    axis_rule = {"onnx": onnx_axis, "openvino": openvino_axis, "onednn": onednn_axis}[dialect]
    sizes = [(forward_axis if is_forward else axis_rule)(axis, rule, a) for axis, a in zip(axes, asked)]
    out, begin = [size for size, _ in sizes], [cut for _, cut in sizes]
    if any(size < 1 for size in out):
        return None

    kernel, spatial = list_of("kernel"), list_of("size")
    data_format, filter_format = formats
    channels_last = data_format == "NXC"
    x_shape = [batch, *spatial, group * ci] if channels_last else [batch, group * ci, *spatial]
    x_index = lambda n, c, i: (n, *i, c) if channels_last else (n, c, *i)
    w_shape, w_index = filter_layout(dialect, op, filter_format, group, ci, co, kernel)

    unsigned, seed = dtype[0] == "u", draw.below(2**20)
    x, w = seeded(x_shape, seed, unsigned), seeded(w_shape, seed + 1, unsigned)
    has_bias = dialect != "openvino" and draw.below(2)
    bias = seeded([group * co], seed + 2, unsigned) if has_bias else None
    geometry = batch, group, ci, co, spatial, kernel, list_of("stride"), list_of("dilation")
    compute = forward if is_forward else transposed
    y = compute(lambda n, c, i: x[x_index(n, c, i)], lambda *at: w[w_index(*at)], bias and bias.data, geometry, out, begin)
    if max(map(abs, y.data)) > EXACT[dtype]:
        return None
    if channels_last:
        y = Array([batch, *out, group * co], [y[n, c, *at] for n, *at, c in positions([batch, *out, group * co])])

    attributes = attributes_of(draw, dialect, op, rule, axes, group, formats, out)
    made = {"dialect": dialect, "op": op}
    if dialect == "onnx":
        made["opset"] = draw.of(1, 11, 22) if dtype != "bf16" else 22
        asked_by_attribute = asks == "attribute"
        if asked_by_attribute:
            attributes["output_shape"] = asked
    elif asks:
        made |= {"output_shape": asked, "output_shape_input": asks}
    made |= {"attrs": attributes, "x": stored(x, dtype, seed, unsigned), "w": stored(w, dtype, seed + 1, unsigned)}
    if has_bias:
        made["b"] = stored(bias, dtype, seed + 2, unsigned)
    return made | {"y": {"shape": y.shape, "data": y.data}}


def filter_layout(dialect, op, filter_format, group, ci, co, kernel):
    """Returns the filter's shape, and the index of `(group, its input channel, its output channel, tap)`."""
    if dialect == "onnx":
        return [group * ci, co, *kernel], lambda g, c, o, k: (g * ci + c, o, *k)
    if dialect == "openvino":
        return {
            "GroupConvolutionBackpropData": ([group, ci, co, *kernel], lambda g, c, o, k: (g, c, o, *k)),
            "ConvolutionBackpropData": ([ci, co, *kernel], lambda g, c, o, k: (c, o, *k)),
            "GroupConvolution": ([group, co, ci, *kernel], lambda g, c, o, k: (g, o, c, *k)),
            "Convolution": ([co, ci, *kernel], lambda g, c, o, k: (o, c, *k)),
        }[op]
    parts = {"X": kernel, "I": [group * ci], "O": [co]}
    index = lambda g, c, o, k: {"X": k, "I": [g * ci + c], "O": [o]}
    shape = [dim for letter in filter_format for dim in parts[letter]]
    return shape, lambda *at: tuple(i for letter in filter_format for i in index(*at)[letter])


def attributes_of(draw, dialect, op, rule, axes, group, formats, out):
    list_of = lambda key: [axis[key] for axis in axes]
    begin, end = list_of("begin"), list_of("end")
    attributes = {"strides": list_of("stride"), "dilations": list_of("dilation")}
    if dialect == "onnx":
        if group > 1 or draw.below(2):
            attributes["group"] = group
        if rule is not None:
            attributes["auto_pad"] = rule
        if any(begin + end):
            attributes["pads"] = begin + end
        if draw.below(3) == 0:
            attributes["kernel_shape"] = list_of("kernel")
    else:
        attributes |= {"pads_begin": begin, "pads_end": end, "auto_pad": rule}
        if dialect == "onednn":
            attributes |= {"groups": group, "data_format": formats[0], "filter_format": formats[1]}
    if any(list_of("output_padding")):
        attributes["output_padding"] = list_of("output_padding")
    return attributes


def drawn(seed, count, **what):
    """Draws `count` cases of one kind."""
    draw, cases = Draw(seed), []
    while len(cases) < count:
        made = case(draw, **{key: value(draw) if callable(value) else value for key, value in what.items()})
        if made is not None:
            cases.append(made)
    return cases


def accepted():
    rank = lambda draw: draw.of(1, 1, 2, 2, 3)
    group = lambda draw: draw.of(1, 1, 2, 3)
    for rule in (None, "", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        name = f"onnx_{'absent' if rule is None else (rule or 'empty').lower()}"
        yield name, drawn(hash_of(name), 11, dialect="onnx", rule=rule, rank=rank, group=group)
    for rule in (None, "VALID", "SAME_UPPER", "SAME_LOWER"):
        name = f"onnx_output_shape_{(rule or 'notset').lower()}"
        yield name, drawn(hash_of(name), 9, dialect="onnx", rule=rule, rank=rank, group=group, asks="attribute")
    for dtype in ("f16", "f64"):
        yield f"onnx_{dtype}", drawn(hash_of(dtype), 5, dialect="onnx", rule="NOTSET", rank=rank, group=group, dtype=dtype)

    grouped = {"op": "GroupConvolutionBackpropData", "group": group}
    plain = {"op": "ConvolutionBackpropData", "group": 1}
    for rule in ("explicit", "same_upper", "same_lower", "valid"):
        for which, form in (("group", grouped), ("plain", plain)):
            name = f"openvino_{which}_{rule}"
            yield name, drawn(hash_of(name), 6, dialect="openvino", rule=rule, rank=rank, **form)
            for asks in ("const", "runtime"):
                name = f"openvino_{which}_{rule}_{asks}"
                yield name, drawn(hash_of(name), 5, dialect="openvino", rule=rule, rank=rank, asks=asks, **form)
    for dtype in ("f16", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"):
        for form in (grouped, {"op": "GroupConvolution", "group": group}):
            name = f"openvino_{form['op']}_{dtype}"
            kind = {"dialect": "openvino", "rule": "explicit", "rank": 1, "dtype": dtype}
            yield name, drawn(hash_of(name), 1, **kind, **form)

    for rule in ("explicit", "same_upper", "same_lower", "valid"):
        for op, groups in (("GroupConvolution", group), ("Convolution", 1)):
            name = f"openvino_{op}_{rule}"
            yield name, drawn(hash_of(name), 6, dialect="openvino", rule=rule, rank=rank, op=op, group=groups)

    for rule in ("None", "VALID", "SAME_UPPER", "SAME_LOWER"):
        for formats in itertools.product(("NCX", "NXC"), ("XIO", "OIX", "XOI", "IOX")):
            name = f"onednn_{rule.lower()}_{formats[0]}_{formats[1]}"
            yield name, drawn(hash_of(name), 3, dialect="onednn", rule=rule, rank=rank, group=group, formats=formats)
    kind = {"dialect": "onednn", "rule": "None", "rank": rank, "group": group, "formats": ("NXC", "XIO")}
    yield "onednn_f16", drawn(hash_of("onednn_f16"), 4, dtype="f16", **kind)


def hash_of(name):
    value = 1
    for letter in name.encode():
        value = (value * 257 + letter) % 2**61
    return value


def refused():
    """Returns nodes of each dialect with one fault each. The last value must be named in the error."""
    tensor = lambda shape, seed=7: {"dtype": "f32", "shape": shape, "seed": seed}
    onnx = ("onnx", "ConvTranspose", [1, 4, 5, 5], [4, 2, 3, 3], {"strides": [2, 2], "dilations": [1, 1]})
    explicit = {"pads_begin": [0, 0], "pads_end": [0, 0], "auto_pad": "explicit"}
    openvino = ("openvino", "GroupConvolutionBackpropData", [1, 4, 5, 5], [2, 2, 2, 3, 3])
    openvino += ({"strides": [2, 2], "dilations": [1, 1]} | explicit,)
    ahead = ("openvino", "GroupConvolution", *openvino[2:])
    onednn = ("onednn", "ConvTranspose", [1, 4, 5, 5], [4, 2, 3, 3])
    onednn += ({"strides": [2, 2], "dilations": [1, 1], "groups": 1, "data_format": "NCX", "filter_format": "IOX"},)
    onednn[4].update(explicit | {"auto_pad": "None"})

    wrong = []
    for base in (onnx, openvino, ahead, onednn):
        wrong += [
            (base, "stride", {"strides": [2, 0]}, "strides"),
            (base, "dilation", {"dilations": [0, 1]}, "dilations"),
            (base, "strides_length", {"strides": [2]}, "strides"),
            (base, "dilations_length", {"dilations": [1, 1, 1]}, "dilations"),
            (base, "auto_pad", {"auto_pad": "SAME"}, "auto_pad"),
        ]
    for base in (onnx, openvino, onednn):
        wrong += [
            (base, "output_padding", {"output_padding": [0, -1]}, "output_padding"),
            (base, "output_padding_length", {"output_padding": [1]}, "output_padding"),
        ]
    for base in (openvino, ahead, onednn):
        wrong += [(base, "pads_length", {"pads_begin": [0]}, "pads_begin")]
    wrong += [
        (onnx, "pads", {"pads": [0, -1, 0, 0]}, "pads"),
        (onnx, "pads_length", {"pads": [0, 0]}, "pads"),
        (onnx, "pads_and_auto_pad", {"pads": [0, 1, 0, 0], "auto_pad": "SAME_UPPER"}, "auto_pad"),
        (onnx, "large_output_padding", {"output_padding": [0, 2]}, "output_padding"),
        (onnx, "output_shape_length", {"output_shape": [9]}, "output_shape"),
        (onnx, "kernel_shape", {"kernel_shape": [3, 2]}, "kernel_shape"),
        (onnx, "no_group", {"group": 0}, "group"),
        (onnx, "group", {"group": 3}, "group"),
        (onnx, "nothing_left", {"pads": [6, 6, 6, 6]}, "pads"),
        (openvino, "nothing_left", {"pads_begin": [6, 6], "pads_end": [6, 6]}, "pads"),
        (ahead, "kernel_beyond_input", {"dilations": [3, 3]}, "kernel"),
        (onednn, "pads", {"pads_end": [0, -1]}, "pads_end"),
        (onednn, "no_group", {"groups": 0}, "groups"),
        (onednn, "group", {"groups": 3}, "group"),
        (onednn, "nothing_left", {"pads_begin": [6, 6], "pads_end": [6, 6]}, "pads"),
        (onednn, "data_format", {"data_format": "NHWC"}, "data_format"),
        (onednn, "filter_format", {"filter_format": "HWIO"}, "filter_format"),
        (onednn, "output_shape", {"output_shape": [9, 9]}, "output_shape"),
    ]
    cases = []
    for (dialect, op, x, w, attributes), name, change, names in wrong:
        what = "openvino_forward" if op == "GroupConvolution" else dialect
        made = {"id": f"{what}_refuses_{name}", "dialect": dialect, "op": op, "attrs": attributes | change}
        cases.append(made | {"x": tensor(x), "w": tensor(w), "expect": "reject", "names": [names]})
    for (dialect, op, x, w, attributes), group in ((onnx, {"group": 1}), (onednn, {})):
        made = {"id": f"{dialect}_refuses_bias", "dialect": dialect, "op": op, "attrs": attributes | group}
        made |= {"x": tensor(x), "w": tensor(w), "b": tensor([3])}
        cases.append(made | {"expect": "reject", "names": ["bias"]})
    for base in (openvino, ahead):
        what = "openvino_forward" if base is ahead else "openvino"
        made = {"id": f"{what}_refuses_channels", "dialect": base[0], "op": base[1], "attrs": base[4]}
        cases.append(made | {"x": tensor([1, 5, 5, 5]), "w": tensor(base[3]), "expect": "reject", "names": ["channels"]})
    made = {"id": "openvino_refuses_output_shape_length", "dialect": "openvino", "op": openvino[1], "attrs": openvino[4]}
    made |= {"x": tensor(openvino[2]), "w": tensor(openvino[3]), "output_shape": [9], "output_shape_input": "const"}
    cases.append(made | {"expect": "reject", "names": ["output_shape"]})
    return cases


def text_of_file():
    cases = []
    for name, made in accepted():
        cases += [{"id": f"{name}_{number}"} | one for number, one in enumerate(made)]
    cases += refused()
    assert len({one["id"] for one in cases}) == len(cases)
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in cases)
    return f'{{"format":1,"origin":"tools/conformance_cases.py","cases":[\n{lines}\n]}}\n', len(cases)


def main():
    parser = argparse.ArgumentParser(description="writes the committed conformance cases")
    parser.add_argument("--check", action="store_true", help="write nothing, compare with the committed file")
    text, count = text_of_file()
    if not parser.parse_args().check:
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(text)
    elif not FILE.is_file() or FILE.read_text() != text:
        sys.exit(f"{FILE.name} is not what tools/conformance_cases.py writes")
    print(f"{count} cases, {len(text) // 1024} KiB")


if __name__ == "__main__":
    main()
