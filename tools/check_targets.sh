#!/usr/bin/env bash
# Checks the library for other targets than this machine's, and runs tests where something here can run them.
#
#   tools/check_targets.sh               every target of the list below
#   tools/check_targets.sh TARGET ...    some of them
#   tools/check_targets.sh --list        what each needs, and whether it is here
#   tools/check_targets.sh --install ... first installs what is missing, from Debian's packages, as root
#   tools/check_targets.sh --check ...   only checks, where tests could run too
#
# The standard library is built from its source with `-Z build-std`, by Debian's compiler: one installation serves all
# targets. What is missing is said in a line. A target whose check or tests fail makes the script fail.
#
# TESTS sets the tests, and PROPTEST_CASES the specs per property. Builds are kept in target-cross. The first build of a
# target takes some minutes.
set -uo pipefail
cd "$(dirname "$0")/.."

compiler=/usr/bin/rustc
tests=${TESTS:-"--lib --test properties --test conformance --test models --test limits --test small_addresses"}

# Target, what runs its programs, its C compiler, and Debian's packages for them. A dash stands for what there is not:
# a target without a runner is checked only, and without a C compiler tract's assembly is left out of the check.
targets() {
  cat <<'LIST'
i686-unknown-linux-gnu native x86_64-linux-gnu-gcc gcc-multilib
armv7-unknown-linux-gnueabihf qemu-arm-static arm-linux-gnueabihf-gcc qemu-user-static,gcc-arm-linux-gnueabihf,libc6-dev-armhf-cross
aarch64-unknown-linux-gnu qemu-aarch64-static aarch64-linux-gnu-gcc qemu-user-static,gcc-aarch64-linux-gnu,libc6-dev-arm64-cross
riscv64gc-unknown-linux-gnu qemu-riscv64-static riscv64-linux-gnu-gcc qemu-user-static,gcc-riscv64-linux-gnu,libc6-dev-riscv64-cross
s390x-unknown-linux-gnu qemu-s390x-static s390x-linux-gnu-gcc qemu-user-static,gcc-s390x-linux-gnu,libc6-dev-s390x-cross
wasm32-wasip1 node - nodejs,wasi-libc
wasm32-unknown-unknown - - -
aarch64-linux-android - - -
aarch64-apple-darwin - - -
x86_64-apple-darwin - - -
x86_64-pc-windows-gnu - x86_64-w64-mingw32-gcc gcc-mingw-w64-x86-64
LIST
}

# What of a target's line is not here.
missing() {
  local target=$1 runner=$2 cc=$3
  [ -x "$compiler" ] || echo rustc-web
  [ -d "$("$compiler" --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library" ] || echo rust-web-src
  case $runner in native | -) ;; *) command -v "$runner" >/dev/null || echo "$runner" ;; esac
  [ "$cc" = - ] || command -v "$cc" >/dev/null || echo "$cc"
  [ "$target" != wasm32-wasip1 ] || [ -e /usr/lib/wasm32-wasi/libc.a ] || echo wasi-libc
  if [ "$runner" = native ]; then
    [ -e /usr/include/gnu/stubs-32.h ] || [ -e /usr/include/x86_64-linux-gnu/gnu/stubs-32.h ] || echo gcc-multilib
  fi
}

install_missing() {
  local packages
  packages=$(for target in "${wanted[@]}"; do targets | awk -v t="$target" '$1 == t && $4 != "-" { print $4 }'; done |
    tr ',' '\n' | sort -u)
  # a Node of another origin serves as well
  command -v node >/dev/null && packages=$(grep -vx nodejs <<<"$packages")
  # shellcheck disable=SC2086
  apt-get update && apt-get install -y --no-install-recommends rustc-web rust-web-src $packages
}

# Sets what Cargo needs to build for a target.
prepare() {
  local target=$1 runner=$2 cc=$3 upper underscored
  underscored=${target//-/_}
  upper=${underscored^^}
  export RUSTC=$compiler RUSTC_BOOTSTRAP=1 RUST_LIB_BACKTRACE=0 CARGO_TERM_COLOR=never
  export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target-cross}
  export RUSTFLAGS=''
  case $target in
  wasm32-*)
    RUSTFLAGS="-C target-feature=${WASM_FEATURES:-+simd128}"
    export "CARGO_TARGET_${upper}_LINKER=$PWD/tools/wasm/link.sh"
    ;;
  esac
  [ "$target" != wasm32-unknown-unknown ] || RUSTFLAGS+=' --cfg getrandom_backend="custom"'
  case $runner in
  native | -) ;;
  node) export "CARGO_TARGET_${upper}_RUNNER=node --no-warnings ${NODE_FLAGS:-} $PWD/tools/wasm/run.mjs" ;;
  *) export "CARGO_TARGET_${upper}_RUNNER=$runner -L /usr/${cc%-gcc}" ;;
  esac
  if [ "$cc" = - ]; then
    # a check links nothing: a compiler that writes nothing serves build scripts
    export "CC_$underscored=true" "AR_$underscored=true"
  else
    export "CC_$underscored=$cc"
    case $target in wasm32-*) ;; *) export "CARGO_TARGET_${upper}_LINKER=$cc" ;; esac
  fi
}

check() {
  cargo check --target "$1" -Z build-std="$(std_of "$1")" --lib --features nnef,pulse
}

# With this crate's checks: optimised for emulators, which are slow, and hardly for this machine's own CPU.
run_tests() {
  local target=$1 runner=$2 ours='profile.release.package.tract-deconv' profile=()
  if [ "$runner" != native ]; then
    profile=(--release --config "$ours.overflow-checks=true" --config "$ours.debug-assertions=true")
  fi
  # shellcheck disable=SC2086
  PROPTEST_CASES=${PROPTEST_CASES:-16} cargo test "${profile[@]}" --target "$target" -Z build-std="$(std_of "$target")" \
    --no-fail-fast --features nnef,pulse $tests -- --test-threads 1
}

std_of() {
  case $1 in wasm32-*) echo std,panic_abort ;; *) echo std,panic_unwind ;; esac
}

failed=0
outcome() {
  outcomes+=("$1: $2")
  printf '== %s: %s\n' "$1" "$2"
}

install=false
list=false
check_only=false
wanted=()
for argument in "$@"; do
  case $argument in
  --install) install=true ;;
  --list) list=true ;;
  --check) check_only=true ;;
  -*)
    sed -n '2,14s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
  *) wanted+=("$argument") ;;
  esac
done
[ ${#wanted[@]} -gt 0 ] || mapfile -t wanted < <(targets | cut -d' ' -f1)
if $install; then
  install_missing || exit 1
fi

outcomes=()
for target in "${wanted[@]}"; do
  line=$(targets | awk -v t="$target" '$1 == t')
  if [ -z "$line" ]; then
    outcome "$target" 'FAILED: not in the list of this script'
    failed=1
    continue
  fi
  read -r _ runner cc packages <<<"$line"
  # a check links nothing: it needs no C compiler
  if $check_only; then runner=- cc=-; fi
  absent=$(missing "$target" "$runner" "$cc" | tr '\n' ' ')
  if $list; then
    outcome "$target" "${packages//,/ }; $([ -n "$absent" ] && echo "not here: $absent" || echo 'all here')"
    continue
  fi
  if [ -n "$absent" ]; then
    outcome "$target" "IGNORED, not here: $absent(--install)"
    continue
  fi
  if ! (prepare "$target" "$runner" "$cc" && if [ "$runner" = - ]; then check "$target"; else run_tests "$target" "$runner"; fi); then
    outcome "$target" FAILED
    failed=1
  elif [ "$runner" = - ]; then
    outcome "$target" 'checked'
  else
    outcome "$target" "tests run:${tests//--test/}"
  fi
done

$list || printf '\n%s\n' 'In short:' "${outcomes[@]}"
exit $failed
