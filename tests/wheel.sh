#!/bin/bash
# The Python wheel: built twice with the same bytes, installed from its file into fresh environments, used by tests/wheel, its types
# checked. Usage: wheel.sh [PYTHON ...], by default python3; pip has to reach an index for pytest and mypy.
set -euo pipefail
tree=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '%s\n' "$1"; }

say "the wheel, twice"
make -s -C "$tree" wheel >"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
wheel=$(tail -n 1 "$work/log")
cp "$tree/$wheel" "$work/"
make -s -C "$tree" wheel >"$work/log" 2>&1
file=$work/$(basename "$wheel")
cmp "$tree/$wheel" "$file"
"$tree/build-wheel/venv/bin/auditwheel" show "$file" >"$work/audit"
tag=$(basename "$file" | grep -o 'manylinux_[0-9_]*_x86_64\|linux_x86_64')
grep -q "\"$tag\"" "$work/audit" || { cat "$work/audit"; exit 1; }
if unzip -p "$file" | grep -aq "$tree"; then say "the wheel names $tree"; exit 1; fi

for python in "${@:-python3}"; do
    say "installed, with $("$python" --version)"
    rm -rf "$work/venv"
    "$python" -m venv "$work/venv"
    "$work/venv/bin/pip" install -q --no-index "$file"
    "$work/venv/bin/sluice" --version
    "$work/venv/bin/pip" install -q pytest mypy
    (cd "$work" && PYTHONDEVMODE=1 "$work/venv/bin/python" -m pytest -q -p no:cacheprovider "$tree/tests/wheel/test_client.py" "$tree/tests/wheel/test_ray_words.py" "$tree/tests/wheel/installed.py")
    (cd "$work" && "$work/venv/bin/mypy" --strict --no-incremental -p sluice_moe)
    "$work/venv/bin/pip" uninstall -q -y sluice-moe
    left=$(find "$work/venv" -iname '*sluice*')
    [ -z "$left" ] || { say "left behind: $left"; exit 1; }
done
say "the wheel is installed, used and removed"
