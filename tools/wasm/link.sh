#!/usr/bin/env bash
# The linker of wasm32-wasip1 for a compiler whose own C library for that target is not installed: rustup's lld, or
# Debian's, with Debian's wasi-libc. That one is older than the standard library: functions of `absent.txt` become
# imports, which the module's host fails in (tools/wasm/run.mjs).
set -euo pipefail

library=/usr/lib/wasm32-wasi
absent=$(dirname "$(realpath "$0")")/absent.txt
lld=$(RUSTC='' rustup which rustc 2>/dev/null | xargs -r dirname)/../lib/rustlib/x86_64-unknown-linux-gnu/bin/rust-lld
[ -x "$lld" ] || lld=$(command -v wasm-ld || command -v wasm-ld-16 || command -v wasm-ld-14)

arguments=()
while [ $# -gt 0 ]; do
  case $1 in
  -flavor) shift ;;
  crt1-*.o) arguments+=("$library/$1") ;;
  *) arguments+=("$1") ;;
  esac
  shift
done
case $lld in *rust-lld) arguments=(-flavor wasm "${arguments[@]}") ;; esac
exec "$lld" "${arguments[@]}" -L "$library" --allow-undefined-file="$absent"
