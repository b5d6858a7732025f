#!/bin/sh
# Weights on memory nodes (--numa), on a machine that has two: Debian's kernel in QEMU, two nodes with a processor each. The file
# cache has a model on the first node. Ranks and workers of a server on both nodes then find their weights there, and with
# --numa on each of them has its own on its own node, by what the log says and by what /proc/PID/numa_maps says; tokens are the same.
#   tests/numa.sh [SLUICE]     tools/install-deps.sh numa brings what it wants; exit 77: something of it is not here
set -eu
cd "$(dirname "$0")/.."
sluice=${1:-build/sluice}
out=build-numa
python=.venv/bin/python
[ "$(uname -m)" = x86_64 ] || { echo "skipped: another machine than x86-64"; exit 77; }
for tool in qemu-system-x86_64 busybox mke2fs apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || PATH=$PATH:/usr/sbin command -v "$tool" >/dev/null || { echo "skipped: no $tool"; exit 77; }
done
PATH=$PATH:/usr/sbin
mkdir -p "$out"

# The kernel is unpacked, not installed.
if [ ! -e "$out"/kernel/boot ]; then
    package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p' | head -n 1)
    [ -n "$package" ] || { echo "skipped: apt-get knows no linux-image-cloud-amd64"; exit 77; }
    (cd "$out" && apt-get download -qq "$package" 2>/dev/null) || { echo "skipped: $package cannot be had"; exit 77; }
    rm -rf "$out/kernel"
    dpkg-deb -x "$out"/linux-image-*.deb "$out/new"
    mv "$out/new" "$out/kernel"
fi
# Eight bits a weight: what QEMU computes quickly.
if [ ! -e "$out/disk" ]; then
    "$python" tools/py/make_random_model.py pair "$out/folder" >/dev/null
    mkdir -p "$out/model"
    "$sluice" convert "$out/folder" "$out/model/pair.gguf" --type q8_0 >/dev/null 2>&1
    rm -rf "$out/folder" "$out/new"
    mke2fs -q -t ext4 -d "$out/model" "$out/new" 80M
    mv "$out/new" "$out/disk"
fi

# A root of busybox, the program and its libraries, and what QEMU's disks want.
root=$out/root
rm -rf "$root"
mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/model" "$root/modules"
cp "$(command -v busybox)" "$root/bin/busybox"
cp "$sluice" "$root/bin/sluice"
cp tests/numa_init.sh "$root/init"
chmod +x "$root/init"
ldd "$sluice" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk; do
    cp "$(find "$out/kernel" -name "$module.ko")" "$root/modules/"
done
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null) >"$out/initramfs"

rm -f "$out/log"
timeout 1800 qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1280M -nodefaults -nographic -no-reboot \
    -object memory-backend-ram,id=m0,size=640M -object memory-backend-ram,id=m1,size=640M \
    -numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1 \
    -kernel "$out"/kernel/boot/vmlinuz-* -initrd "$out/initramfs" -append "console=ttyS0 quiet panic=-1 tsc=reliable" \
    -drive "file=$out/disk,format=raw,if=virtio,readonly=on" -serial "file:$out/log" </dev/null
exec "$python" tests/numa_check.py "$out/log"
