#!/usr/bin/env bash
# Builds the page: a module of tract with this project's plugin, and the files beside it, into a folder that any server of
# static files serves.
#
#   examples/web/build.sh            into target/web
#   examples/web/build.sh FOLDER
#
# Needs Debian's compiler and the source of its standard library; installs them as root where they are missing. The first
# build takes some ten minutes and is kept in target-cross. wasm-opt of Debian's or npm's binaryen makes the module smaller
# where it is installed.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=${1:-target/web}
[ -x /usr/bin/rustc ] || tools/check_targets.sh --install --list wasm32-unknown-unknown

mkdir -p "$folder/models"
examples/web/module.sh "$folder/engine.wasm"
cp examples/web/page/* "$folder"
for model in upscale4 vocoder; do
  mkdir -p "$folder/models/$model"
  cp "models/$model/model.onnx" "models/$model/io.npz" "$folder/models/$model"
done
printf '%s\n' "$folder: $(du -sh "$folder" | cut -f1). Serve it: python3 -m http.server -d $folder"
