#!/usr/bin/env bash
# Builds the module alone, optimised as a page wants it.
#
#   examples/web/module.sh FILE [CARGO'S ARGUMENTS]
#
# CARGO_PROFILE_RELEASE_OPT_LEVEL=s makes it smaller, CARGO_PROFILE_RELEASE_STRIP=false keeps the functions' names, and
# `--no-default-features` is stock tract alone.
set -euo pipefail
cd "$(dirname "$0")/../.."

file=$1
shift
export CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 CARGO_PROFILE_RELEASE_PANIC=abort
export CARGO_PROFILE_RELEASE_STRIP=${CARGO_PROFILE_RELEASE_STRIP:-true} CARGO_PROFILE_RELEASE_DEBUG=false
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target-cross}
WASM_TARGET=wasm32-unknown-unknown tools/wasm/cargo.sh build --release --package web "$@"
built=$CARGO_TARGET_DIR/wasm32-unknown-unknown/release/web.wasm
if [ "$CARGO_PROFILE_RELEASE_STRIP" = true ] && command -v wasm-opt >/dev/null; then
  level=${CARGO_PROFILE_RELEASE_OPT_LEVEL:-3}
  wasm-opt "-O$level" --all-features "$built" -o "$file"
else
  cp "$built" "$file"
fi
