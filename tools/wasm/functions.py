"""Which functions a WebAssembly module's code consists of: bytes and numbers of functions, by a pattern in their names.

    python3 tools/wasm/functions.py MODULE                     by crate
    python3 tools/wasm/functions.py MODULE 'tract_deconv\\[\\w+\\]::(\\w+)'  by the first group of a regular expression

The module must have its names: a build without `strip`. `c++filt` of binutils makes them readable.
"""

import re
import subprocess
import sys
from collections import defaultdict

CRATE = r"([a-z_][a-z0-9_]*)(?:\[[0-9a-f]+\])?::"


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self):
        """An unsigned LEB128."""
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def bytes(self, count):
        self.at += count
        return self.data[self.at - count : self.at]

    def name(self):
        return self.bytes(self.number()).decode()

    def done(self):
        return self.at >= len(self.data)


def sections(module):
    reader = Reader(module)
    assert reader.bytes(4) == b"\0asm", "no module"
    reader.bytes(4)
    while not reader.done():
        (kind,) = reader.bytes(1)
        yield kind, Reader(reader.bytes(reader.number()))


def imported_functions(reader):
    count = 0
    for _ in range(reader.number()):
        reader.name(), reader.name()
        (kind,) = reader.bytes(1)
        if kind == 0:
            count += 1
            reader.number()
        elif kind == 1:
            reader.bytes(1)
            limits(reader)
        elif kind == 2:
            limits(reader)
        else:
            reader.bytes(2)
    return count


def limits(reader):
    for _ in range(1 + (reader.number() & 1)):
        reader.number()


def read(path):
    """Returns the bytes of each kind of section, and (name, bytes) of each function."""
    sizes, code, names, imported = defaultdict(int), [], {}, 0
    for kind, reader in sections(open(path, "rb").read()):
        label = {0: "custom", 10: "code", 11: "data"}.get(kind, "other")
        sizes[label] += len(reader.data)
        if kind == 2:
            imported = imported_functions(reader)
        elif kind == 10:
            for _ in range(reader.number()):
                count = reader.number()
                reader.bytes(count)
                code.append(count)
        elif kind == 0 and reader.name() == "name":
            while not reader.done():
                (part,) = reader.bytes(1)
                inner = Reader(reader.bytes(reader.number()))
                if part == 1:
                    names = {inner.number(): inner.name() for _ in range(inner.number())}
    names = [names.get(imported + at, "?") for at in range(len(code))]
    readable = subprocess.run("c++filt", input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return sizes, list(zip(readable.split("\n"), code, strict=True))


def main():
    path, pattern = sys.argv[1], re.compile(sys.argv[2] if len(sys.argv) > 2 else CRATE)
    sizes, functions = read(path)
    print(", ".join(f"{label} {size}" for label, size in sizes.items()))
    groups = defaultdict(lambda: [0, 0])
    for name, count in functions:
        found = pattern.search(name)
        group = groups[found[1] if found else "-"]
        group[0] += count
        group[1] += 1
    for label, (count, number) in sorted(groups.items(), key=lambda group: -group[1][0])[:60]:
        print(f"{count:9} bytes, {number:6} functions: {label}")


main()
