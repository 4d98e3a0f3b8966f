"""Runs every model of models/ in onnxruntime and writes its io.npz and the table of versions.

    python3 -m venv .venv && .venv/bin/pip install -r tools/requirements.txt
    .venv/bin/python tools/reference_outputs.py

Inputs are seeded by the model's name, so a second run with the same versions writes the same bytes. Symbols get the
sizes below. No two sizes of a model are equal, and none is a multiple of a stride.

With --check nothing is written. The new outputs are compared with the files, at 1e-5 of their scale.
"""

import argparse
import pathlib
import platform
import re
import sys
import zlib

import numpy as np
import onnxruntime as ort

MODELS = pathlib.Path(__file__).resolve().parent.parent / "models"
SIZES = {
    "upscale4": {"height": 23, "width": 31},
    "istft": {"channels": 2, "frames": 29},
    "dcgan_small": {"batch": 3},
    "denoiser": {"batch": 2, "frames": 13},
    "unet_symbolic": {"batch": 2, "height": 53, "width": 39},
    "vocoder": {"batch": 2, "frames": 11},
}
BEGIN, END = "<!-- versions: written by tools/reference_outputs.py -->", "<!-- end of versions -->"


def inputs_of(name, session):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return {
        i.name: rng.standard_normal(
            [d if isinstance(d, int) else SIZES[name][d] for d in i.shape], dtype=np.float32
        )
        for i in session.get_inputs()
    }


def run(name):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    # Runs the operators as written, without onnxruntime's fusions.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        MODELS / name / "model.onnx", options, providers=["CPUExecutionProvider"]
    )
    feeds = inputs_of(name, session)
    names = [o.name for o in session.get_outputs()]
    arrays = {f"in__{k}": v for k, v in feeds.items()}
    arrays |= {f"out__{k}": v for k, v in zip(names, session.run(names, feeds))}
    return arrays


def compare(name, arrays):
    worst = 0.0
    with np.load(MODELS / name / "io.npz") as stored:
        if set(stored.files) != set(arrays):
            return np.inf
        for key, fresh in arrays.items():
            if stored[key].shape != fresh.shape or stored[key].dtype != fresh.dtype:
                return np.inf
            scale = np.abs(stored[key]).max()
            worst = max(worst, float(np.abs(stored[key] - fresh).max() / scale))
    return worst


def record_versions():
    rows = [
        ("onnxruntime", ort.__version__),
        ("numpy", np.__version__),
        ("Python", platform.python_version()),
        ("machine", f"{platform.system()} {platform.machine()}"),
    ]
    table = "\n".join(["| what | version |", "|---|---|"] + [f"| {k} | {v} |" for k, v in rows])
    readme = MODELS / "README.md"
    text, count = re.subn(
        f"{BEGIN}.*{END}", f"{BEGIN}\n{table}\n{END}", readme.read_text(), flags=re.DOTALL
    )
    if count != 1:
        sys.exit(f"{readme}: no single versions section")
    readme.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the files, write nothing")
    check = parser.parse_args().check
    folders = {p.parent.name for p in MODELS.glob("*/model.onnx")}
    if folders != set(SIZES):
        sys.exit(f"models/ and SIZES differ: {sorted(folders ^ set(SIZES))}")
    failed = False
    for name in SIZES:
        arrays = run(name)
        for key, value in arrays.items():
            print(f"{name:14} {key:16} {str(value.shape):20} scale {np.abs(value).max():.3f} std {value.std():.3f}")
        if check:
            worst = compare(name, arrays)
            failed |= not worst <= 1e-5
            print(f"{name:14} differs by at most {worst:.1e} of the scale")
        else:
            np.savez(MODELS / name / "io.npz", **arrays)
    if not check:
        record_versions()
    sys.exit(failed)


if __name__ == "__main__":
    main()
