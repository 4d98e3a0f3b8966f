#!/usr/bin/env bash
# How many bytes this crate adds to a WebAssembly module: builds the least program that loads and runs a model, with and
# without it, optimised for speed and for size, and prints the sizes, also after wasm-opt and gzip.
#
#   tools/wasm/size.sh              -O3 and -Os
#   tools/wasm/size.sh 3            one of them
#
# Needs what tools/check_targets.sh needs for wasm32-wasip1. wasm-opt is Debian's binaryen.
set -euo pipefail
cd "$(dirname "$0")/size"

export RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_TERM_COLOR=never
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-../../../target-cross}
export RUSTFLAGS='-C target-feature=+simd128'
export CARGO_TARGET_WASM32_WASIP1_LINKER=$PWD/../link.sh

printf '%s\n' 'opt-level, with, bytes, bytes after wasm-opt, bytes after gzip'
[ $# -gt 0 ] || set -- 3 s
for level in "$@"; do
  for with in stock plugin; do
    features=()
    [ $with = stock ] || features=(--features plugin)
    CARGO_PROFILE_RELEASE_OPT_LEVEL=$level cargo build --quiet --release --target wasm32-wasip1 \
      -Z build-std=std,panic_abort "${features[@]}"
    module=$CARGO_TARGET_DIR/wasm32-wasip1/release/wasm_size.wasm
    smaller=-
    if command -v wasm-opt >/dev/null; then
      option=-O$level
      wasm-opt "$option" --all-features "$module" -o "$module.opt" && smaller=$(stat -c %s "$module.opt")
    fi
    printf '%s, %s, %s, %s, %s\n' "$level" "$with" "$(stat -c %s "$module")" "$smaller" "$(gzip -9 <"$module" | wc -c)"
  done
done
