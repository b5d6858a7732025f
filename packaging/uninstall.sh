#!/bin/sh
# Removes what `cmake --install` has put somewhere: the files that its manifest names, and then Sluice's own folders if they are empty.
# Usage: uninstall.sh install_manifest.txt, with DESTDIR as it was then. Files that are gone already are no error.
set -eu
[ -r "$1" ] || { echo "$1: cannot be read, so nobody knows what was installed; make install writes it" >&2; exit 1; }
while read -r file || [ -n "$file" ]; do
    rm -f "${DESTDIR:-}$file"
done <"$1"
while read -r file || [ -n "$file" ]; do
    folder=$(dirname "$file")
    case $folder in
    */sluice | */libsluice-dev) rmdir "${DESTDIR:-}$folder" 2>/dev/null || true ;;
    esac
done <"$1"
