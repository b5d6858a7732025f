"""Write Hugging Face checkpoint folders: sharded bf16 safetensors, their index, and small files.

The bytes are a pure function of the arguments: tensors are laid out in the order given, headers
have sorted keys and no time stamps, so two runs give equal SHA-256 sums. Needs numpy only.

    with ShardWriter(folder, plan, 500_000_000) as w:    # plan: [(name, shape), ...]
        w.add(name, float32_or_uint16_array)             # once per row of the plan, in its order
    w.sha256                                             # file name -> hex sum of every file
Thread: one writer belongs to one thread.
"""
import hashlib
import json
import math
import os

import numpy as np


def bf16_from_f32(x):
    """Round float32 to the nearest bfloat16 (ties to even) as uint16 of the same shape.

    The values must be finite: weights that are not are refused by `ShardWriter.add`."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    bias = (u >> 16) & 1
    bias += 0x7FFF
    bias += u
    return (bias >> 16).astype(np.uint16)


def json_bytes(value):
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()


def write_file(folder, name, data):
    """Write bytes to folder/name and return their SHA-256 in hex."""
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data)
    return hashlib.sha256(data).hexdigest()


def _split(plan, shard_bytes):
    """Cut the plan into runs of whole tensors of at most shard_bytes (one tensor may exceed it)."""
    shards, used = [[]], 0
    for name, shape in plan:
        size = 2 * math.prod(shape)
        if shards[-1] and used + size > shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append((name, tuple(shape), size))
        used += size
    return shards


def _header(rows):
    head, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape, size in rows:
        head[name] = {"dtype": "BF16", "shape": list(shape),
                      "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class ShardWriter:
    """Streams tensors to model-0000k-of-0000n.safetensors and writes the index at the end."""

    def __init__(self, folder, plan, shard_bytes):
        self.folder = folder
        self.shards = _split(plan, shard_bytes)
        self.total_bytes = sum(size for rows in self.shards for _, _, size in rows)
        self.sha256 = {}
        self._files = self._name_files()
        self._at = (0, 0)
        self._f = self._hash = None

    def _name_files(self):
        n = len(self.shards)
        if n == 1:
            return ["model.safetensors"]
        return ["model-%05d-of-%05d.safetensors" % (i + 1, n) for i in range(n)]

    def __enter__(self):
        return self

    def __exit__(self, failed, *_):
        if self._f:
            self._f.close()
        if not failed:
            self._finish()

    def add(self, name, values):
        """Write the next tensor of the plan; float32 is rounded to bf16, uint16 holds bf16 bits."""
        shard, row = self._at
        want, shape, _ = self.shards[shard][row]
        if (name, tuple(values.shape)) != (want, shape):
            raise ValueError("tensor %s %s comes where the plan has %s %s"
                             % (name, values.shape, want, shape))
        if values.dtype != np.uint16:
            if not np.isfinite(values).all():
                raise ValueError("tensor %s holds a value that is not finite" % name)
            values = bf16_from_f32(values)
        if row == 0:
            self._f = open(os.path.join(self.folder, self._files[shard]), "wb")
            self._hash = hashlib.sha256()
            self._put(_header(self.shards[shard]))
        self._put(values.astype("<u2", copy=False).tobytes())
        self._at = (shard, row + 1)
        if row + 1 == len(self.shards[shard]):
            self._f.close()
            self._f = None
            self.sha256[self._files[shard]] = self._hash.hexdigest()
            self._at = (shard + 1, 0)

    def _put(self, data):
        self._f.write(data)
        self._hash.update(data)

    def _finish(self):
        if self._at != (len(self.shards), 0):
            raise ValueError("%s: tensors of the plan are missing from %s on"
                             % (self.folder, self.shards[self._at[0]][self._at[1]][0]))
        if len(self.shards) == 1:
            return
        where = {name: file for file, rows in zip(self._files, self.shards) for name, _, _ in rows}
        index = {"metadata": {"total_size": self.total_bytes}, "weight_map": where}
        name = "model.safetensors.index.json"
        self.sha256[name] = write_file(self.folder, name, json_bytes(index))
