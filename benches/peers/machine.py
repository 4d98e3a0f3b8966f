"""Describes the machine of a measurement."""

import os
import platform
import re
import subprocess
from datetime import date
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
INSTRUCTION_SETS = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "asimdhp", "sve")


def describe():
    cpu = read("/proc/cpuinfo")
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", cpu, re.M)
    model = re.search(r"^model name\s*: (.*)$", cpu, re.M)
    caches = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        caches.append(f"L{read(index / 'level')} {read(index / 'type').lower()} {read(index / 'size')}")
    memory = int(re.search(r"MemTotal:\s*(\d+)", read("/proc/meminfo"))[1])
    huge = re.search(r"\[(\w+)\]", read("/sys/kernel/mm/transparent_hugepage/enabled"))
    return {
        "date": date.today().isoformat(),
        "cpu": model[1] if model else platform.machine(),
        "cores": os.cpu_count(),
        "instruction sets": [name for name in INSTRUCTION_SETS if flags and name in flags[1].split()],
        "caches": caches,
        "memory GiB": round(memory / 2**20, 1),
        "huge pages": huge[1] if huge else "unknown",
        "kernel": platform.release(),
        "rustc": command("rustc", "--version"),
        "commit": command("git", "-C", str(HERE), "describe", "--always", "--dirty", "--exclude=*"),
        "versions": {name: version(name) for name in ("onnxruntime", "openvino", "MNN", "ncnn", "onednn")}
        | {"tract-onnx": tract_version()},
        "knobs": {name: value for name, value in sorted(os.environ.items()) if name.startswith("TRACT_")},
    }


def stolen_ms():
    """Returns the time that the hypervisor gave to other machines, summed over all cores since boot, in ms."""
    return int(read("/proc/stat").split()[8]) * 1000 // os.sysconf("SC_CLK_TCK")


def tract_version():
    lock = (HERE.parent.parent / "Cargo.lock").read_text()
    return re.search(r'name = "tract-onnx"\nversion = "([^"]+)"', lock)[1]


def read(path):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def command(*words):
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
