#!/bin/bash
# Sluice's packages on a fresh Debian: installed, used and removed. Builds them (make package), compares what the SBOM and the
# checksums say, makes a root of a Debian of its own (debootstrap). There the wheel is used where none of the libraries is that it brings;
# the lines of packaging/Dockerfile install the program, and its user serves the fixture, a worker killed under way; the units run under a systemd; the example is
# built against the library by pkg-config and by CMake; then all is removed, and what stayed is looked for.
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
version=$("$tree/packaging/version.py")
make -s -C "$tree" package
(cd "$tree/build-package" && sha256sum -c --quiet SHA256SUMS)
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q 'cyclonedx-python-lib[json-validation]==11.12.0'
"$work/venv/bin/python" "$tree/tests/sbom.py" "$tree/build-package"
say "a fresh Debian"
. /etc/os-release
mirror=$(sed -n 's/^URIs: *\([^ ]*\).*/\1/p; s/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -v security | head -n 1) || true # one of the files may not be there
debootstrap --variant=minbase "$VERSION_CODENAME" "$root" "$mirror" >"$work/log" 2>&1 || { tail -n 20 "$work/log"; exit 77; }
mount -t proc proc "$root/proc" 2>/dev/null || { echo "/proc cannot be mounted here" >&2; exit 77; }
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp -a /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"

cp -r "$model" "$root/srv/model"
chmod -R a+rX "$root/srv/model"
inside apt-get update -qq

say "the wheel, beside nothing but Python"
inside apt-get install -y -qq --no-install-recommends python3-venv >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }
cp "$tree"/build-package/*.whl "$root/tmp/"
inside sh -c 'python3 -m venv /opt/env && /opt/env/bin/pip install -q --no-index /tmp/*.whl'
cat >"$root/tmp/used.py" <<'P'
import sluice_moe
with sluice_moe.Engine("/srv/model", exact=True) as engine:
    here = engine.generate([3, 17, 41], max_tokens=16)
with sluice_moe.Server("/srv/model", exact=True, attention=1, experts=2) as server:
    there = server.client().complete([3, 17, 41], max_tokens=16, temperature=0, extra={"return_token_ids": True})
assert here.ids == there.choices[0].token_ids and len(here.ids) == 16, (here, there)
P
as_nobody /opt/env/bin/python /tmp/used.py
as_nobody /opt/env/bin/sluice --version
rm -rf "$root/opt/env" "$root"/tmp/*.whl "$root/tmp/used.py"

say "installed, as the Dockerfile says"
"$tree/tests/image.py" build "$root" "$tree/build-package" >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }
say "$(as_nobody sluice --version)"
[ "$(as_nobody sluice --version)" = "sluice $version" ] || { say "the version of the tree is $version"; exit 1; }
[ "$(inside dpkg-query -W -f '${Version}' sluice)" = "$version" ] || { say "the package has another version than $version"; exit 1; }
gunzip -c "$root/usr/share/man/man1/sluice-serve.1.gz" | head -n 1 | grep -qF "\"sluice $version\"" || { say "the man page has another version"; exit 1; }
for file in /usr/share/man/man1/sluice.1.gz /usr/share/man/man1/sluice-serve.1.gz /usr/share/bash-completion/completions/sluice /usr/lib/systemd/system/sluice.service; do
    [ -s "$root$file" ] || { say "$file is not there"; exit 1; }
done
grep -q '^ExecStart=/usr/bin/sluice serve' "$root/usr/lib/systemd/system/sluice.service"

say "served, by the user of the image"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
given=(SLUICE_PORT="$port" SLUICE_API_KEY=a-key-of-the-test SLUICE_TRANSPORT=tcp SLUICE_ATTENTION=1 SLUICE_EXPERTS=2 SLUICE_EXACT=1 SLUICE_SERVED_MODEL_NAME=m)
"$tree/tests/image.py" run "$root" SLUICE_PORT="$port" >"$work/served" 2>&1 && { say "it serves the world without a key"; exit 1; }
grep -q 'API key' "$work/served" || { cat "$work/served"; exit 1; }
"$tree/tests/image.py" run "$root" "${given[@]}" >"$work/served" 2>&1 &
server=$!
for _ in $(seq 600); do
    ! grep -q 'listening on' "$work/served" || break
    kill -0 $server 2>/dev/null || break
    sleep 0.1
done
"$tree/tests/image.py" check "$root" "${given[@]}" | grep -q ok || { cat "$work/served"; exit 1; }
curl -fsS --max-time 60 "http://127.0.0.1:$port/v1/completions" -H 'Content-Type: application/json' -H 'Authorization: Bearer a-key-of-the-test' \
    -d '{"model": "m", "prompt": "Now the word", "max_tokens": 8, "temperature": 0}' >"$work/answer"
[ "$(stat -c %u /proc/$server)" = 10001 ] || { say "another user runs it"; exit 1; }
curl -fsS --max-time 60 "http://127.0.0.1:$port/version" | grep -qF "\"$version\"" || { say "the server has another version"; exit 1; }
python3 "$tree/tests/killed.py" "http://127.0.0.1:$port" $server a-key-of-the-test || { cat "$work/served"; exit 1; }
kill -TERM $server
wait $server || { say "it did not stop in order"; exit 1; }
grep -q '"text"' "$work/answer" || { cat "$work/answer"; exit 1; }
inside userdel sluice # the service has a user of its own, which is made when it starts
rm -rf "$root/var/lib/sluice"

say "as a service"
inside sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd-sysv dbus' >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }
umount "$root/proc"
units="the units hold under a systemd"
"$tree/tests/units.sh" "$root" || { code=$?; [ $code = 77 ] || exit $code; units="the units were NOT tried: no systemd can be started here"; }
mount -t proc proc "$root/proc"
rm -rf "$root/etc/sluice" "$root"/etc/systemd/system/sluice* "$root/var/lib/private/sluice" "$root/var/lib/sluice" "$root/var/cache/private/sluice" "$root/var/cache/sluice"

say "the library, by pkg-config and by CMake"
cp "$tree"/build-package/libsluice-dev_*.deb "$root/tmp/"
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
say "packages are installed, used and removed; $units"
