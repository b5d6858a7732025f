#!/bin/bash
# Packs what bench/gpu/lease.sh needs on a machine with a GPU and without a network: the program, its shared libraries but for
# glibc, tests and benches that are worth a GPU, and the script itself.
#
#   bench/gpu/pack.sh [FOLDER]          builds build/lease, writes FOLDER/pack.tar.xz and FOLDER/lease.sh (FOLDER: .gpu);
#                                       LEASE_BUILD=build: of what a build there has, with all of its libraries
#   bench/gpu/pack.sh --keep FROM [FOLDER]   what a run brought back (its $OUT is at FROM): FOLDER has its figures, and marks of
#                                       the steps that passed, which the next run skips
#
# FOLDER is kept out of git by .git/info/exclude. It travels beside the tree, whose tests/golden the steps read.
set -euo pipefail
tree=$(cd "$(dirname "$0")/../.." && pwd)
most=$((20 * 1024 * 1024)) # with the tree less than what may travel

keep() { # FROM FOLDER
    mkdir -p "$2/done"
    [ -f "$1/table.txt" ] || { echo "$1 has no table.txt" >&2; exit 1; }
    while IFS=$'\t' read -r step rc _; do
        case $rc in 0) touch "$2/done/$step" ;; esac
    done <"$1/table.txt"
    { echo "== $(date -u +%FT%TZ)"; cat "$1/table.txt"; } >>"$2/figures.txt"
    echo "done: $(ls "$2/done" | tr '\n' ' ')"
}

if [ "${1:-}" = --keep ]; then
    keep "$2" "${3:-$tree/.gpu}"
    exit
fi

into=${1:-$tree/.gpu}
if [ -n "${LEASE_BUILD:-}" ]; then
    build=$LEASE_BUILD level=0 most=$((1 << 30)) # it goes nowhere: little of xz, any size
else
    build=$tree/build/lease level=6
    launcher=()
    command -v ccache >/dev/null && launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
    # no UCX, no curl, no GnuTLS of its own: one machine, no network, half as many libraries
    cmake -S "$tree" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSL_UCX=OFF -DSL_CURL=OFF -DSL_GNUTLS=OFF "${launcher[@]}" >/dev/null
fi
# tests of kernels, which run on whatever driver there is; others bring the tests' own
targets=$(ninja -C "$build" -t targets all | sed -n 's/^\(cuda_[a-z0-9_]*\|bench_moe\|bench_dense\|bench_cuda_attention\|bench_cuda_draws\|test_law\): .*/\1/p' |
    grep -v '^cuda_\(fake\|blocks\|emulator\|fast\)$' | sort -u)
# shellcheck disable=SC2086
[ -n "${LEASE_BUILD:-}" ] || nice -n 12 ninja -C "$build" -j2 sluice $targets >"$build/lease.log" || { tail -20 "$build/lease.log" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/lib" "$work/gpu"
for name in sluice $targets; do
    file=$(find "$build" -maxdepth 3 -type f -name "$name" -perm -u+x | head -1)
    [ -n "$file" ] && strip -o "$work/bin/$name" "$file"
done
cp "$tree"/bench/gpu/*.py "$work/gpu/"
for file in "$work"/bin/*; do
    ldd "$file" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p'
done | sort -u | while read -r lib; do
    case $(basename "$lib") in
    libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | libresolv.so.* | ld-linux* | libgcc_s* | libcuda.so*) ;;
    *) cp -L "$lib" "$work/lib/" ;;
    esac
done
echo "$tree" >"$work/source" # where tests look for fixtures: their build knew it by this path
git -C "$tree" log -1 --format='%h %cs%n' >"$work/commit"
git -C "$tree" status --porcelain --untracked-files=no | sed 's/^/changed: /' >>"$work/commit"
# glibc that the programs ask for
for file in "$work"/bin/* "$work"/lib/*; do objdump -T "$file"; done 2>/dev/null | grep -o 'GLIBC_2\.[0-9]*' | sort -Vu | tail -1 >"$work/glibc"

mkdir -p "$into"
tar -C "$work" -c . | xz "-$level" -T2 >"$into/pack.tar.xz"
cp "$tree/bench/gpu/lease.sh" "$into/lease.sh"
size=$(stat -c %s "$into/pack.tar.xz")
echo "$into/pack.tar.xz: $((size / 1024)) KiB, wants $(cat "$work/glibc"): $(ls "$work/bin" | tr '\n' ' ')"
[ "$size" -le "$most" ] || { echo "over $((most / 1024 / 1024)) MiB: it does not travel with the tree" >&2; exit 1; }
