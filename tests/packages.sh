#!/bin/bash
# Sluice's packages on a fresh Debian: installed, used and removed. Builds them (make package), makes a root of a Debian of its
# own (debootstrap), installs both there, and as a user without rights serves the fixture, asks it over HTTP, reads the man
# page; builds the example against the library by pkg-config and by CMake; then removes both and looks for what stayed.
# Usage: packages.sh [MODEL]. Wants root that may mount, debootstrap and a mirror: exit 77 says that something of these is not here.
set -euo pipefail
tree=$(cd "$(dirname "$0")/.." && pwd)
model=${1:-$tree/tests/golden/qwen3moe-tiny}
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || { echo "root and debootstrap are needed" >&2; exit 77; }
work=$(mktemp -d)
root=$work/root
trap 'umount "$root/proc" 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT

say() { printf '%s\n' "$1"; }
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive HOME=/tmp "$@"; }
as_nobody() { chroot --userspec=nobody:nogroup "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp "$@"; }

say "packages"
make -s -C "$tree" package
say "a fresh Debian"
. /etc/os-release
mirror=$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p; s/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -v security | head -n 1) || true # one of the files may not be there
debootstrap --variant=minbase "$VERSION_CODENAME" "$root" "$mirror" >"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 77; }
mount -t proc proc "$root/proc" 2>/dev/null || { echo "/proc cannot be mounted here" >&2; exit 77; }
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp -a /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"

say "installed"
cp "$tree"/build-package/*.deb "$root/tmp/"
cp -r "$model" "$root/srv/model"
inside apt-get update -qq
inside sh -c 'apt-get install -y -qq --no-install-recommends /tmp/sluice_*.deb' >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }
version=$(as_nobody sluice --version)
say "$version"
for file in /usr/share/man/man1/sluice.1.gz /usr/share/bash-completion/completions/sluice /usr/lib/systemd/system/sluice.service; do
    [ -s "$root$file" ] || { say "$file is not there"; exit 1; }
done
grep -q '^ExecStart=/usr/bin/sluice serve' "$root/usr/lib/systemd/system/sluice.service"

say "served, by nobody"
as_nobody sluice serve /srv/model --port 0 --transport tcp --attention 1 --experts 2 --served-model-name m >"$work/served" 2>&1 &
server=$!
for _ in $(seq 600); do
    url=$(sed -n 's/.*listening on \(http[^ ]*\).*/\1/p' "$work/served")
    [ -z "$url" ] || break
    kill -0 $server 2>/dev/null || break
    sleep 0.1
done
[ -n "$url" ] || { cat "$work/served"; exit 1; }
curl -fsS --max-time 60 "$url/v1/completions" -H 'Content-Type: application/json' \
    -d '{"model": "m", "prompt": "Now the word", "max_tokens": 8, "temperature": 0}' >"$work/answer"
pkill -TERM -P $server 2>/dev/null || kill -TERM $server
wait $server || true
grep -q '"text"' "$work/answer" || { cat "$work/answer"; exit 1; }

say "the library, by pkg-config and by CMake"
inside sh -c 'apt-get install -y -qq --no-install-recommends /tmp/libsluice-dev_*.deb gcc libc6-dev pkg-config cmake make' >"$work/log" 2>&1 ||
    { tail "$work/log"; exit 1; }
mkdir "$root/tmp/example"
cp "$tree"/examples/generate.c "$root/tmp/example/"
cat >"$root/tmp/example/CMakeLists.txt" <<'C'
cmake_minimum_required(VERSION 3.18)
project(example C)
find_package(sluice 0.1 REQUIRED)
add_executable(generate generate.c)
target_link_libraries(generate PRIVATE sluice::sluice)
C
inside sh -c 'cd /tmp/example && cc generate.c -o by-pkg-config $(pkg-config --cflags --libs sluice) && cmake . >log && make -s'
for program in by-pkg-config generate; do
    as_nobody "/tmp/example/$program" /srv/model "Now the word" 8 >"$work/$program" 2>/dev/null
    [ -s "$work/$program" ] || { say "$program said nothing"; exit 1; }
done
cmp "$work/by-pkg-config" "$work/generate"

say "removed"
inside apt-get purge -y -qq sluice libsluice-dev >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }
left=$(find "$root" -xdev -iname '*sluice*' -not -path '*/tmp/*' -not -path '*/var/log/*' -not -path '*/var/cache/*' -not -path '*/var/lib/dpkg/*')
[ -z "$left" ] || { say "left behind: $left"; exit 1; }
say "packages are installed, used and removed"
