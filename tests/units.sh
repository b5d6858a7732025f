#!/bin/bash
# Sluice's units under a systemd of their own: it is process 1 of namespaces around a Debian in a folder, where the packages are
# installed. Starts, keys in files that the service's own user gets, what each unit may do at most, a worker that is killed under way, restarts after
# a kill and after a silence, a worker with the secret in a file, stops. Usage: units.sh ROOT, with systemd, dbus, curl and Python in it and a model at /srv/model. Exit 77: no systemd
# can be started here.
set -euo pipefail
root=$1
work=$(mktemp -d)
init=0
trap 'kill -KILL $init 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT

say() { printf '%s\n' "$1"; }
fail() { say "$1"; inside journalctl --no-pager -q -n 40 || true; exit 1; }
inside() { nsenter -t "$init" -m -p -C -i -u -n -r -w /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
await() { # WHAT SECONDS COMMAND..
    local what=$1 left=$(($2 * 5))
    shift 2
    until "$@" >"$work/last" 2>&1; do
        left=$((left - 1))
        [ $left -gt 0 ] || { cat "$work/last"; fail "$what"; }
        sleep 0.2
    done
}
shows() { [ "$(inside systemctl show -P "$2" "$1")" = "$3" ]; }
exposed() { # UNIT MOST: what `systemd-analyze security` says of it as it runs; docs/install.md states it
    local score
    score=$(inside systemd-analyze security --no-pager "$1" | sed -n 's/.* exposure level for [^:]*: \([0-9.]*\) .*/\1/p')
    say "$1: exposure $score"
    awk -v is="$score" -v most="$2" 'BEGIN { exit !(is ~ /^[0-9.]+$/ && is + 0 <= most) }' || fail "$1 may do more than it should: $score, not $2"
}
asked() { inside curl -fsS --max-time 10 "$@"; }

cat >"$work/start" <<'S'
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for at in run dev tmp; do mount -t tmpfs -o mode=1777 tmpfs $at; done
chmod 755 run dev
for d in null zero full random urandom tty; do : >dev/$d; mount --bind /dev/$d dev/$d; done
ln -s /proc/self/fd dev/fd
mkdir -p dev/shm dev/pts dev/mqueue dev/hugepages old
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=1777 tmpfs dev/shm
pivot_root . old
umount -l old
mount --make-rshared / # as process 1 finds it: what it mounts for a service has to reach that
exec env -i container=other /lib/systemd/systemd --show-status=no
S
unshare -f -p -m -C -i -u -n sh "$work/start" "$root" >"$work/boot" 2>&1 &
for _ in $(seq 50); do
    init=$(pgrep -P $! || echo 0)
    [ "$init" = 0 ] || [ "$(cat /proc/"$init"/comm)" != systemd ] || break
    sleep 0.2
done
running() { case $(inside systemctl is-system-running 2>/dev/null) in running | degraded) ;; *) false ;; esac }
for _ in $(seq 150); do running && break || sleep 0.2; done
running || { cat "$work/boot"; echo "no systemd can be started here" >&2; exit 77; }
say "$(inside systemctl --version | head -n 1), process 1"

inside systemd-analyze verify --man=no sluice.service sluice-worker.service >"$work/last" 2>&1 || true # others' units have faults, too
! grep -i sluice "$work/last" || fail "systemd-analyze has something to say"
inside sh -c 'mkdir -p /etc/sluice && cd /etc/sluice && sluice secret --out admin.key && sluice secret --out secret' >/dev/null
inside tee /etc/sluice/serve.env >/dev/null <<'V'
MODEL=/srv/model
SLUICE_ATTENTION=1
SLUICE_EXPERTS=2
SLUICE_EXACT=1
SLUICE_PORT=8000
SLUICE_SERVED_MODEL_NAME=m
V
inside install -D -m 644 /usr/share/sluice/serve-keys.conf /etc/systemd/system/sluice.service.d/keys.conf
inside systemctl daemon-reload

say "started, with a key in a file"
inside systemctl start sluice || fail "sluice.service does not start"
pid=$(inside systemctl show -P MainPID sluice)
[ "$(inside stat -c %U "/proc/$pid")" != root ] || fail "it runs as root"
asked http://127.0.0.1:8000/v1/completions -d '{"model": "m", "prompt": "Now the word", "max_tokens": 8}' | grep -q '"text"' || fail "no answer"
key=$(inside cat /etc/sluice/admin.key)
asked -H "Authorization: Bearer $key" http://127.0.0.1:8000/admin/workers | grep -q '"state":"serving"' || fail "the admin key does not open"
if inside setpriv --reuid nobody --clear-groups cat /run/credentials/sluice.service/admin.key >"$work/last" 2>&1; then fail "everybody reads the key"; fi
exposed sluice.service 1.4

say "a worker is killed while it answers"
inside python3 - http://127.0.0.1:8000 "$pid" <"$(dirname "$0")/killed.py" || fail "the answer does not go on"
[ "$(inside systemctl show -P NRestarts sluice)" = 0 ] || fail "systemd started it again"

if inside journalctl --no-pager -q -u sluice | grep 'reception only permitted'; then fail "systemd hears of its workers"; fi

say "killed, and started again"
inside systemctl kill --kill-whom=main -s KILL sluice
await "it is not started again" 60 shows sluice NRestarts 1
await "it does not answer again" 60 asked http://127.0.0.1:8000/readyz

say "silent, and started again"
inside mkdir -p /run/systemd/system/sluice.service.d
printf '[Service]\nWatchdogSec=3\n' | inside tee /run/systemd/system/sluice.service.d/soon.conf >/dev/null
inside systemctl daemon-reload
inside systemctl restart sluice
pid=$(inside systemctl show -P MainPID sluice)
sleep 8 # alive all the while
[ "$(inside systemctl show -P MainPID sluice)" = "$pid" ] || fail "its watchdog bites although it lives"
inside systemctl kill --kill-whom=main -s STOP sluice
await "nobody noticed that it stands still" 60 shows sluice NRestarts 1
await "it does not answer again" 60 asked http://127.0.0.1:8000/readyz
inside rm /run/systemd/system/sluice.service.d/soon.conf

say "with a worker of its own unit, the secret in files"
inside systemctl stop sluice
inside tee /etc/sluice/serve.env >/dev/null <<'V'
MODEL=/srv/model
SLUICE_ATTENTION=1
SLUICE_PORT=8000
SLUICE_SERVED_MODEL_NAME=m
SLUICE_REMOTE=1
SLUICE_FABRIC_PORT=7000
V
inside sed -i '/secret/s/^#\([LE]\)/\1/' /etc/systemd/system/sluice.service.d/keys.conf # the secret, too
echo 'SLUICE_JOIN=127.0.0.1:7000' | inside tee /etc/sluice/worker.env >/dev/null
inside install -D -m 644 /usr/share/sluice/worker-keys.conf /etc/systemd/system/sluice-worker.service.d/keys.conf
inside systemctl daemon-reload
inside systemctl start --no-block sluice
inside systemctl start sluice-worker || fail "sluice-worker.service does not start"
await "it does not serve with the worker" 60 asked http://127.0.0.1:8000/readyz
asked http://127.0.0.1:8000/v1/completions -d '{"model": "m", "prompt": "Now the word", "max_tokens": 8}' | grep -q '"text"' || fail "no answer with the worker"
exposed sluice-worker.service 1.4
say "stopped"
inside systemctl stop sluice-worker sluice
shows sluice Result success || fail "it did not stop in order"
shows sluice ActiveState inactive || fail "it goes on"
say "the units hold under systemd"
