#!/usr/bin/env bash
# Cargo for WebAssembly modules with 128-bit vectors; programs run under Node.
#
#   tools/wasm/cargo.sh test --release --lib -- --test-threads 1      unit tests, without the checks of check_targets.sh
#
# WASM_TARGET sets another target than wasm32-wasip1, WASM_FEATURES other features than +simd128, and NODE_FLAGS flags of
# Node. Needs what `tools/check_targets.sh --install --list wasm32-wasip1` installs. Builds are kept in target-cross.
set -euo pipefail
tools=$(realpath "$(dirname "$0")")

target=${WASM_TARGET:-wasm32-wasip1}
underscored=${target//-/_}
export RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_TERM_COLOR=never
CARGO_TARGET_DIR=$(realpath -m "${CARGO_TARGET_DIR:-$tools/../../target-cross}")
export CARGO_TARGET_DIR
export RUSTFLAGS="-C target-feature=${WASM_FEATURES:-+simd128}"
# without a host there are no random numbers
[ "$target" != wasm32-unknown-unknown ] || RUSTFLAGS+=' --cfg getrandom_backend="custom"'
export "CARGO_TARGET_${underscored^^}_LINKER=$tools/link.sh"
export CARGO_TARGET_WASM32_WASIP1_RUNNER="node --no-warnings ${NODE_FLAGS:-} $tools/run.mjs"
# build scripts compile C for nothing
export "CC_$underscored=true" "AR_$underscored=true"

command=$1
shift
exec cargo "$command" --target "$target" -Z build-std=std,panic_abort "$@"
