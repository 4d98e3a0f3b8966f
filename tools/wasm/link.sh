#!/usr/bin/env bash
# The linker of wasm32-wasip1 for a compiler whose own C library for that target is not installed: rustup's lld, or
# Debian's, with Debian's wasi-libc.
set -euo pipefail

library=/usr/lib/wasm32-wasi
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
exec "$lld" "${arguments[@]}" -L "$library"
