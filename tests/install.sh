#!/bin/sh
# What `cmake --install` brings is enough: header, archive and pkg-config file build the examples in a folder of their own,
# and what they generate is what `sluice run` says; with DESTDIR it is staged, and uninstall.sh takes it away. Usage: install.sh BUILD MODEL. CTest install.example.
set -eu
tree=$(cd "$(dirname "$0")/.." && pwd)
build=$1 model=$2 prompt="Now the word"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >"$work/log" || { cat "$work/log"; exit 1; }
# Staged: everything lies below DESTDIR, its units name the prefix; taken away, nothing of it is left.
DESTDIR="$work/stage" cmake --install "$build" --prefix /opt/staged >"$work/log" || { cat "$work/log"; exit 1; }
[ ! -e /opt/staged ]
for file in bin/sluice lib/libsluice.a include/sluice.h share/man/man1/sluice.1.gz share/man/man1/sluice-serve.1.gz lib/pkgconfig/sluice.pc; do
    [ -s "$work/stage/opt/staged/$file" ] || { echo "$file is not below DESTDIR"; exit 1; }
done
if command -v systemd-analyze >/dev/null; then # 16 is 1.6: what each unit may do by its file; as they run: tests/units.sh
    systemd-analyze security --no-pager --offline=true --threshold=16 "$work"/stage/opt/staged/lib/systemd/system/*.service >"$work/log" || { cat "$work/log"; exit 1; }
fi
DESTDIR="$work/stage" "$tree/packaging/uninstall.sh" "$build/install_manifest.txt"
left=$(find "$work/stage" ! -type d -o -name '*sluice*')
[ -z "$left" ] || { echo "left behind: $left"; exit 1; }
if "$tree/packaging/uninstall.sh" "$work/no-manifest" 2>"$work/why"; then exit 1; fi
grep -q "no-manifest: cannot be read" "$work/why"
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
