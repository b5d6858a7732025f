#!/bin/sh
# What `cmake --install` brings is enough: header, archive and pkg-config file build the examples in a folder of their own,
# and what they generate is what `sluice run` says. Usage: install.sh BUILD MODEL. CTest install.example.
set -eu
tree=$(cd "$(dirname "$0")/.." && pwd)
build=$1 model=$2 prompt="Now the word"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >"$work/log" || { cat "$work/log"; exit 1; }
mkdir "$work/outside"
cp "$tree"/examples/*.c "$work/outside"
cd "$work/outside"
export PKG_CONFIG_PATH="$work/prefix/lib/pkgconfig"
for c in *.c; do
    # shellcheck disable=SC2046 # flags are words
    cc -Wall -Wextra -Werror "$c" -o "${c%.c}" $(pkg-config --cflags --libs sluice)
done
"$work/prefix/bin/sluice" run "$model" -p "$prompt" -n 16 --temp 0 2>log >run.txt
for workers in "" "2 2"; do
    # shellcheck disable=SC2086
    ./generate "$model" "$prompt" 16 $workers >text.txt 2>tokens.txt || { cat tokens.txt; exit 1; }
    grep -qx "16 tokens" tokens.txt
    printf '\n' >>text.txt
    cmp text.txt run.txt
done
if ./generate /nowhere "$prompt" >text.txt 2>why.txt; then exit 1; fi
grep -q /nowhere why.txt
echo "the examples build outside the tree and say what sluice run says"
