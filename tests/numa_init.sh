#!/bin/busybox sh
# The first process of the machine that tests/numa.sh starts: runs servers and prints, in lines that begin with "numa: ", what their
# log says of weights, what they answer, and on which nodes the pages of the model's file lie that each of their mappings reaches.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp SLUICE_LOG=info
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
ip link set lo up
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk; do
    insmod "/modules/$module.ko"
done
mount -t ext4 -o ro /dev/vda /model
say() { echo "numa: $*"; }

say "nodes $(cat /sys/devices/system/node/has_memory), processors of node 1: $(cat /sys/devices/system/node/node1/cpulist)"

# The file cache has all of the model on the first node.
warm() {
    echo 3 >/proc/sys/vm/drop_caches
    taskset 1 cat /model/pair.gguf >/dev/null
}

# NAME OPTION...: a server with these options, one request, its mappings.
try() {
    name=$1
    shift
    say "case $name: $*"
    sluice serve /model/pair.gguf --port 8000 --isa avx2 --ctx 256 --no-status "$@" >/tmp/log 2>&1 &
    server=$!
    for i in $(seq 400); do
        kill -0 "$server" || break
        wget -q -O - http://127.0.0.1:8000/readyz >/dev/null 2>&1 && break
        sleep 0.5
    done
    say "tokens $(wget -q -O - --header 'Content-Type: application/json' --post-data \
        '{"prompt": [3, 17], "max_tokens": 4, "temperature": 0, "return_token_ids": true}' \
        http://127.0.0.1:8000/v1/completions | sed -n 's/.*"token_ids": *\(\[[^]]*\]\).*/\1/p')"
    grep -a 'memory node' /tmp/log | while read -r line; do say "log $line"; done
    for maps in /proc/[0-9]*/numa_maps; do
        grep -h 'file=/model/pair.gguf' "$maps" 2>/dev/null | grep mapped= | while read -r line; do
            say "pages ${maps#/proc/} $line"
        done
    done
    kill "$server"
    wait "$server" || { say "server failed"; cat /tmp/log; }
}

warm
try off --schedule ep --tp 2 --threads 2 --pin auto
try threads --schedule ep --tp 2 --threads 2 --pin auto --numa on
warm
try processes --schedule ep --tp 2 --threads 2 --tp-ranks processes --pin auto --numa on
warm
try colocated --schedule ep --attention 2 --threads 1 --pin auto --numa on
warm
try numbers --schedule pingpong --attention 1 --experts 1 --threads 1 --pin 0,1 --numa on
try several --schedule ep --threads 2 --pin auto --numa on
say end
poweroff -f
