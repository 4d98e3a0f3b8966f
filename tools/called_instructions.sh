#!/bin/sh
# Lists the functions of this crate in an optimised build that call a vector instruction as a function. A closure that the
# compiler does not inline into a function of an instruction set does that, and takes several times as long.
#
#   tools/called_instructions.sh [PROGRAM]
#
# PROGRAM is target/release/tract-deconv if it is not given. It must not be stripped. Exits with 1 if there is such a
# function. Those of other crates are not counted.
set -eu
program=${1:-target/release/tract-deconv}
[ -r "$program" ] || { echo "called_instructions: program=$program, it can't be read" >&2; exit 2; }
called=$(objdump -d --no-show-raw-insn -C "$program" | awk '
    /^[0-9a-f]+ <.*>:$/ { caller = $0; sub(/^[0-9a-f]+ </, "", caller); sub(/>:$/, "", caller); callers++ }
    /call.*<core::core_arch::/ && caller ~ /tract_deconv/ { print caller }
    # The closures of iterators bear the names of the standard library.
    /call.*<core::core_arch::/ && caller ~ /^core::iter::/ { print caller }
    END { if (callers < 1000) print "only " callers " functions were found: is the program stripped?" }' | sort | uniq -c)
[ -z "$called" ] || { echo "$called"; exit 1; }
