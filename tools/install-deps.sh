#!/bin/sh
# Installs the Debian packages that building, testing and the demo need; does nothing when they are there.
#   tools/install-deps.sh [python|neon]
set -eu
build="gcc cmake ninja-build pkg-config libucx-dev libmicrohttpd-dev libjansson-dev libpcre2-dev \
libsodium-dev libutf8proc-dev libyaml-dev libcmocka-dev python3 python3-venv curl jq ca-certificates"
test="spin clang libclang-rt-14-dev"
packages="$build"
[ "${1:-}" = python ] && packages="$build $test"
[ "${1:-}" = neon ] && packages="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user libcmocka-dev:arm64"

missing=""
for p in $packages; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
if ! command -v apt-get >/dev/null; then
    echo "These packages are missing, and this is no Debian where apt-get could install them:$missing" >&2
    exit 1
fi
as_root=""
[ "$(id -u)" = 0 ] || as_root="sudo"
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
[ "${1:-}" = neon ] && $as_root dpkg --add-architecture arm64
$as_root apt-get update -qq
$as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
