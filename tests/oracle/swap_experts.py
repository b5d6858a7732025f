#!/usr/bin/env python3
"""Copies a checkpoint folder with two experts of one layer exchanged: a test of the oracle test.

  python tests/oracle/swap_experts.py FIXTURE OUT --layer 2 --experts 1,5

Only the data bytes of the two experts' tensors move (standard library only); headers, router and
every other file stay as they are. An engine that still gives the golden ids does not look at which
expert it runs.
"""

import argparse
import json
import pathlib
import re
import shutil
import struct

STACKED = re.compile(r"transformer\.blocks\.(\d+)\.ffn\.experts\.mlp\.(\w\d)")  # DBRX: all experts' rows
STACK = re.compile(r"(model\.layers\.\d+\.(?:feed_forward|mlp)\.experts)\.([a-z_]+)")  # [experts][...]
EXPERT = re.compile(r"model\.layers\.(\d+)\.(?:mlp|block_sparse_moe|feed_forward)\.experts\.(\d+)\.(.+)")


def parts_of(name, place):
    """The tensor, or each expert's part of a stack under a name of its own."""
    match = STACK.fullmatch(name)
    if not match:
        return {name: place}
    path, begin, size, dtype, (count, *shape) = place
    each = size // count
    return {
        f"{match[1]}.{e}.{match[2]}": (path, begin + e * each, each, dtype, shape)
        for e in range(count)
    }


def tensors(folder):
    """{name: (file, first byte in file, size, dtype, shape)} over all shards."""
    out = {}
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                place = (path, 8 + size + begin, end - begin, entry["dtype"], entry["shape"])
                out.update(parts_of(name, place))
    return out


def read(place):
    with open(place[0], "rb") as file:
        file.seek(place[1])
        return file.read(place[2])


def write(place, data):
    with open(place[0], "r+b") as file:
        file.seek(place[1])
        file.write(data)


def swap(source, out, layer, experts):
    """Copies folder `source` to `out` (must not exist) and exchanges the two experts there.

    Returns the number of tensors that moved.
    """
    shutil.copytree(source, out)
    return exchange(out, layer, experts)


def exchange(folder, layer, experts):
    """Exchanges two experts of a layer in the folder itself; the number of tensors that moved."""
    out = pathlib.Path(folder)
    found = tensors(out)
    parts = {}
    for name in list(found):
        match = EXPERT.fullmatch(name)
        if match and int(match[1]) == layer and int(match[2]) in experts:
            parts.setdefault(match[3], {})[int(match[2])] = name
        match = STACKED.fullmatch(name)
        if match and int(match[1]) == layer:
            parts[match[2]] = {e: name for e in experts}
            count = json.loads((out / "config.json").read_text())["ffn_config"]["moe_num_experts"]
            path, begin, size, dtype, shape = found[name]
            for e in experts:
                found[name, e] = (path, begin + e * (size // count), size // count, dtype, shape)
    if not parts:
        raise SystemExit(f"swap_experts: {out}: layer {layer} has no experts {experts}")
    moved = 0
    for part, names in parts.items():
        if sorted(names) != sorted(experts):
            raise SystemExit(f"swap_experts: {out}: layer {layer}, {part}: only {names}")
        a, b = (found.get((names[e], e)) or found[names[e]] for e in experts)
        if a[2:] != b[2:]:
            raise SystemExit(f"swap_experts: {names}: size, dtype or shape differ")
        first, second = read(a), read(b)
        write(a, second)
        write(b, first)
        moved += 2
    return moved


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fixture", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--layer", type=int, help="default: the layer of golden.json's swap_test")
    parser.add_argument("--experts", help="two ids, comma; default: those of swap_test")
    args = parser.parse_args()
    test = {}
    if args.layer is None or args.experts is None:
        test = json.loads((args.fixture / "golden.json").read_text(encoding="utf-8"))["swap_test"]
    layer = test["layer"] if args.layer is None else args.layer
    experts = [int(x) for x in args.experts.split(",")] if args.experts else test["experts"]
    if len(experts) != 2 or experts[0] == experts[1]:
        raise SystemExit(f"swap_experts: --experts wants two different ids, not {experts}")
    moved = swap(args.fixture, args.out, layer, experts)
    print(
        f"{args.out}: layer {layer}, experts {experts[0]} and {experts[1]}: {moved} tensors moved"
    )


if __name__ == "__main__":
    main()
