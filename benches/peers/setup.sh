#!/usr/bin/env bash
# Creates the virtual environment of run.py in benches/peers/.venv.
set -euo pipefail
cd "$(dirname "$0")"
"${PYTHON:-python3}" -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check --requirement requirements.txt
.venv/bin/python - <<'PYTHON'
from importlib.metadata import version
for name in ("onnxruntime", "openvino", "MNN", "onnx", "numpy", "matplotlib"):
    print(name, version(name))
PYTHON
