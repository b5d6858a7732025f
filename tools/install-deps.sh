#!/bin/sh
# Installs the Debian packages that are missing, of each group named: what building and the demo need (build), what
# the tests need beside that (test), what compiles for AArch64 and runs it (neon), what boots a machine of two memory nodes (numa), what shows the web page to its tests (page), what starts jobs (cluster: Slurm, Open MPI).
#   tools/install-deps.sh [build|test|neon|numa|page|cluster ...]     none named: build
set -eu
build="gcc cmake ninja-build pkg-config libucx-dev libmicrohttpd-dev libjansson-dev libpcre2-dev \
libsodium-dev libgnutls28-dev libcurl4-openssl-dev libutf8proc-dev libyaml-dev libcmocka-dev python3 python3-venv curl jq ca-certificates"
test="spin clang libclang-rt-14-dev valgrind iproute2 procps zsh fish"
neon="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user libcmocka-dev:arm64"
numa="qemu-system-x86 busybox-static e2fsprogs"
page="chromium"
cluster="slurmctld slurmd slurm-client munge openmpi-bin"

packages=""
foreign=""
[ $# -gt 0 ] || set -- build
for group; do
    case $group in
    build) packages="$packages $build" ;;
    test) packages="$packages $test" ;;
    neon) packages="$packages $neon" foreign=arm64 ;;
    numa) packages="$packages $numa" ;;
    page) packages="$packages $page" ;;
    cluster) packages="$packages $cluster" ;;
    *) echo "no group $group of packages; there are build, test, neon, numa, page and cluster" >&2; exit 2 ;;
    esac
done

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
[ -z "$foreign" ] || $as_root dpkg --add-architecture "$foreign"
# One at a time: apt-get does not wait for another one's update.
(
    flock 9
    $as_root apt-get update -qq
    $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
) 9>"${TMPDIR:-/tmp}/sluice-install-deps.lock"
