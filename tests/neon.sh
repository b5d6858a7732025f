#!/bin/sh
# The kernel tests for AArch64, compiled here and run by qemu-user: the NEON tables against the reference, bit for
# bit. Does nothing where a tool is missing (tools/install-deps.sh neon brings them).
#   tests/neon.sh [quick]     quick: without the loops over threads and tiles (a quarter of the time)
set -eu
cd "$(dirname "$0")/.."
out=build-neon
gcc=aarch64-linux-gnu-gcc
for tool in "$gcc" qemu-aarch64; do
    command -v "$tool" >/dev/null || { echo "skipped: no $tool"; exit 0; }
done
[ -e /usr/lib/aarch64-linux-gnu/libcmocka.so ] || { echo "skipped: no cmocka for arm64"; exit 0; }
mkdir -p "$out"
flags="-g1 -std=gnu11 -Wall -Wextra -Wshadow -Werror -Wno-missing-field-initializers -ffp-contract=off -fno-math-errno \
-D_GNU_SOURCE -Isrc -Itests -Itests/unit"
# The sources of the library sl_kernel, but for the choice that CMake tells its revision, and of what it needs.
sources="$(ls src/kernel/*.c | grep -v /choice.c) $(ls src/kernel/ref/*.c src/kernel/neon/*.c src/kernel/neondot/*.c src/kernel/neonmm/*.c src/quant/*.c src/spec/kv_type.c) \
src/base/mem.c src/base/pool.c src/base/status.c src/base/rng.c src/base/clock.c"
# Objects are of the newest header, too: which one includes it is not asked.
header=$(find src/kernel src/quant src/base src/spec -name '*.[hd]*' -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)
for s in $sources; do
    o="$out/$(echo "$s" | tr / .).o"
    [ "$o" -nt "$s" ] && [ "$o" -nt "$header" ] && continue
    case "$s" in */neondot/*) arch=armv8.2-a+dotprod ;; */neonmm/*) arch=armv8.2-a+dotprod+i8mm ;; *) arch=armv8-a ;; esac
    echo "$s $o $arch"
done | xargs -r -P "$(nproc)" -L 1 sh -c "$gcc -O3 $flags -march=\"\$2\" -c \"\$0\" -o \"\$1\""
tests="test_kernel test_kv_rows"
sample=-DSL_UNDER_QEMU
[ "${1:-}" = quick ] || { tests="$tests test_kernel_driver"; sample=; }
for t in $tests; do echo "$t"; done |
    xargs -P "$(nproc)" -I {} "$gcc" -O1 $flags $sample "tests/unit/{}.c" "$out"/*.o -lcmocka -lm -lpthread -o "$out/{}"
# As many at a time as there are cores; the kernels' test in parts.
for t in $tests; do
    [ "$t" = test_kernel ] && parts="0 1 2 3 4 5" || parts=0
    for part in $parts; do echo "$t $part ${parts##* }"; done
done | xargs -P "$(nproc)" -L 1 sh -c "qemu-aarch64 $out/\$0 \$1 \$((\$2 + 1)) >$out/\$0.\$1.log 2>&1 || { cat $out/\$0.\$1.log; exit 255; }"
for t in $tests; do
    grep -h -F "FACT" "$out/$t".0.log || true
    for log in "$out/$t".?.log; do tail -1 "$log"; done
done
