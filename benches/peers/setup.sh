#!/usr/bin/env bash
# Creates the virtual environment of run.py in benches/peers/.venv, and builds the library that calls oneDNN.
set -euo pipefail
cd "$(dirname "$0")"
"${PYTHON:-python3}" -m venv .venv
.venv/bin/pip install --quiet --disable-pip-version-check --requirement requirements.txt
# An RPATH, unlike a RUNPATH, also holds for the libraries that oneDNN needs. SYCL's own headers are not needed.
"${CXX:-c++}" -O2 -std=c++17 -Wall -Wextra -shared -fPIC onednn.cpp -o .venv/lib/libonednn_layer.so \
  -I .venv/include -L .venv/lib -ldnnl -Wl,-rpath,'$ORIGIN',--disable-new-dtags,--allow-shlib-undefined
.venv/bin/python - <<'PYTHON'
from importlib.metadata import version
for name in ("onnxruntime", "openvino", "MNN", "ncnn", "onednn", "onnx", "numpy", "matplotlib"):
    print(name, version(name))
PYTHON
