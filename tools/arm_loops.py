#!/usr/bin/env python3
"""Counts the instructions of the inner loops of the NEON kernels, and what they take on cores of ARM and Apple.

    tools/arm_loops.py PROGRAM [NAME]

PROGRAM is any program of aarch64 that holds the kernels, such as the unit tests that `tools/test_arm.sh` builds, with
symbols. NAME is a part of the names of functions, `neon_f32::` if none is given. Needs `aarch64-linux-gnu-objdump`.

A loop is what a branch backwards encloses without another one inside. Of each loop with multiply-adds the table has
its instructions, its multiply-adds of four f32, its loads into vector registers, whole ones and lanes, and the instructions
that store to or load from the stack: spilled registers. Loops of a function with equal counts are one line.
The last columns are multiply-adds per cycle if nothing but the number of multiply-adds, loads and instructions that
a core starts per cycle limits the loop, of as many multiply-adds as it can start.
"""

import collections
import re
import subprocess
import sys

# Multiply-adds of 128 bits, loads of 128 bits, loads of a lane, and instructions that a core starts per cycle: what its
# published tables have. A Cortex-A55 starts a load of 128 bits every second cycle.
CORES = {
    "Cortex-A55": (1, 0.5, 1, 2),
    "Cortex-A76, Neoverse N1": (2, 2, 2, 4),
    "Neoverse V1, V2, Apple M1": (4, 3, 3, 8),
}

Instruction = collections.namedtuple("Instruction", "address mnemonic operands")


def functions(program, name):
    """Yields the names and instructions of functions."""
    listing = subprocess.run(
        ["aarch64-linux-gnu-objdump", "--disassemble", "--demangle", "--no-show-raw-insn", program],
        capture_output=True, text=True, check=True,
    ).stdout
    for part in listing.split("\n\n"):
        head = re.match(r"\s*[0-9a-f]+ <(.*)>:\n", part)
        if not head or name not in head[1]:
            continue
        lines = (re.match(r"\s*([0-9a-f]+):\s+(\S+)\s*(.*)", line) for line in part[head.end():].splitlines())
        yield head[1], [Instruction(int(m[1], 16), m[2], m[3]) for m in lines if m]


def inner_loops(instructions):
    """Yields the instructions of each loop that holds no other one."""
    at = {instruction.address: i for i, instruction in enumerate(instructions)}
    loops = []
    for i, (address, mnemonic, operands) in enumerate(instructions):
        target = re.search(r"\b([0-9a-f]+) <", operands)
        if (mnemonic.startswith("b.") or mnemonic in ("b", "cbz", "cbnz", "tbz", "tbnz")) and target:
            begin = at.get(int(target[1], 16))
            if begin is not None and begin <= i:
                loops.append((begin, i))
    for begin, end in sorted(set(loops)):
        if not any((begin <= b and e <= end) and (b, e) != (begin, end) for b, e in loops):
            yield instructions[begin:end + 1]


def loads(loop, registers):
    """The number of registers of these kinds that a loop loads."""
    kinds = [i for i in loop if re.match(r"ld", i.mnemonic) and re.match(rf"\{{?[{registers}]\d", i.operands)]
    return sum(2 if i.mnemonic == "ldp" else 1 for i in kinds)


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    name = sys.argv[2] if len(sys.argv) > 2 else "neon_f32::"
    counted = ["function", "instructions", "multiply-adds", "vectors loaded", "lanes loaded", "on the stack"]
    print("| " + " | ".join([*counted, *CORES]) + " |")
    print("|---|---:|---:|---:|---:|---:|" + "---:|" * len(CORES))
    rows = set()
    for function, instructions in functions(sys.argv[1], name):
        for loop in inner_loops(instructions):
            products = sum(i.mnemonic in ("fmla", "fmls") and ".4s" in i.operands for i in loop)
            if not products:
                continue
            vectors, lanes = loads(loop, "qv"), loads(loop, "sd")
            stack = sum(re.match(r"(ld|st)", i.mnemonic) is not None and "[sp" in i.operands for i in loop)
            reached = []
            for multiply_adds, of_vectors, of_lanes, started in CORES.values():
                loaded = vectors / of_vectors + lanes / of_lanes
                cycles = max(products / multiply_adds, loaded, len(loop) / started)
                reached.append(f"{products / cycles:.2f} of {multiply_adds}")
            rows.add((function.split("::", 2)[-1], len(loop), products, vectors, lanes, stack, *reached))
    for row in sorted(rows, key=lambda row: (row[0], -row[2], row[1])):
        print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    main()
