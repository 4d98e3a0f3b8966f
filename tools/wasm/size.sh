#!/usr/bin/env bash
# How many bytes this crate adds to a WebAssembly module: builds that of examples/web without it, with it for f32 alone, and
# with all its types, and prints the sizes, optimised by wasm-opt where it is installed, and after gzip.
#
#   tools/wasm/size.sh              for speed (-O3) and for size (-Os)
#   tools/wasm/size.sh 3            one of them
#
# Needs what examples/web/build.sh needs. Each line takes minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
printf '%s\n' 'opt-level, with, bytes, bytes after gzip'
[ $# -gt 0 ] || set -- 3 s
for level in "$@"; do
  for with in stock f32 all; do
    case $with in
    stock) features=(--no-default-features) ;;
    f32) features=() ;;
    all) features=(--features all-types) ;;
    esac
    CARGO_PROFILE_RELEASE_OPT_LEVEL=$level examples/web/module.sh "$folder/module.wasm" --quiet "${features[@]}"
    printf '%s, %s, %s, %s\n' "$level" "$with" "$(stat -c %s "$folder/module.wasm")" "$(gzip -9 <"$folder/module.wasm" | wc -c)"
  done
done
