#!/bin/bash
# Kernels of CUDA for other GPUs than those of Hopper: every image built for compute capabilities 8.0, 9.0a and 12.0, and as PTX
# for those to come, and what it has inside. Nothing here runs one. Needs nvcc.
#
#   tests/archs.sh [BUILD_FOLDER]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-archs}
command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || { echo "skipped: nvcc is not here"; exit 0; }
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSL_CUDA=ON "-DSL_CUDA_ARCHS=80;90a;120+PTX" >/dev/null
cmake --build "$build" -j "$(nproc)" --target gpu_images
python3 - "$build" <<'PY'
"""Entries of a fat binary: kind (1 PTX, 2 ELF) and architecture."""
import pathlib
import struct
import sys

images = sorted(pathlib.Path(sys.argv[1]).glob("cuda/*.fatbin"))
kernels = sorted(p.stem for p in pathlib.Path("src/stage/cuda/kernels").glob("*.cu"))
assert [p.stem for p in images] == kernels, (images, kernels)
for image in images:
    data, found = image.read_bytes(), set()
    magic, _, head, size = struct.unpack_from("<IHHQ", data)
    assert magic == 0xBA55ED50 and head + size == len(data), image
    at = head
    while at < len(data):
        kind, _, entry, length, _, _, _, _, arch = struct.unpack_from("<HHIQIIHHI", data, at)
        found.add((kind, arch))
        at += entry + length
    assert found == {(2, 80), (2, 90), (2, 120), (1, 120)}, (image.name, found)
print(f"{len(images)} images, each for 8.0, 9.0a, 12.0 and as PTX")
PY
