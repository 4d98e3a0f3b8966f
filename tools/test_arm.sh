#!/usr/bin/env bash
# Runs the tests of the kernels and the random specs for aarch64 under emulation, on a machine without NEON.
#
#   tools/test_arm.sh              unit tests and properties
#   tools/test_arm.sh --test NAME  another set, as cargo test accepts it
#
# It needs Debian and root. On an aarch64 machine plain `cargo test` runs the same tests. The first build takes about
# ten minutes and is kept in target-arm. The emulator checks results, not speed.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
# Debian's compiler, as its standard library for arm64 is a package too.
compiler=/usr/bin/rustc

install_missing() {
  local missing=()
  [ -x "$compiler" ] || missing+=(rustc-web)
  command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
  command -v qemu-aarch64-static >/dev/null || missing+=(qemu-user-static)
  if [ ${#missing[@]} -gt 0 ]; then
    apt-get update
    apt-get install -y --no-install-recommends "${missing[@]}"
  fi
  if ! [ -d "$("$compiler" --print sysroot)/lib/rustlib/$target/lib" ]; then
    # Unpack only the files, as installing the package would pull in an arm64 system.
    dpkg --add-architecture arm64
    apt-get update
    local folder
    folder=$(mktemp -d)
    chmod 755 "$folder"
    (cd "$folder" && apt-get download libstd-rust-web-dev:arm64 && dpkg -x libstd-rust-web-dev_*_arm64.deb /)
    rm -r "$folder"
  fi
}

install_missing
export RUSTC=$compiler RUST_LIB_BACKTRACE=0
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target-arm}
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64-static -L /usr/aarch64-linux-gnu"
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
[ $# -gt 0 ] || set -- --lib --test properties
exec cargo test --release --target "$target" --features nnef,pulse "$@"
