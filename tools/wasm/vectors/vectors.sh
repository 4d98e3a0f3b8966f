#!/usr/bin/env bash
# The vectors of WebAssembly alone, under Node: tests their lanes and times register tiles, in seconds and not minutes.
#
#   tools/wasm/vectors/vectors.sh                            +simd128
#   tools/wasm/vectors/vectors.sh +simd128,+relaxed-simd     with the multiply-add of relaxed-simd
#
# Needs what tools/check_targets.sh needs for wasm32-wasip1.
set -euo pipefail
cd "$(dirname "$0")"

export RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 RUSTFLAGS="-C target-feature=${1:-+simd128}"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-../../../target-cross}
export CARGO_TARGET_WASM32_WASIP1_LINKER=$PWD/../link.sh
cargo build --release --target wasm32-wasip1 -Z build-std=std,panic_abort
# V8's first compiler is not the one that runs kernels
exec node --no-liftoff --experimental-wasm-relaxed-simd vectors.mjs \
  "$CARGO_TARGET_DIR/wasm32-wasip1/release/wasm_vectors.wasm"
