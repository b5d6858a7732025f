"""Read a GGUF file (versions 2 and 3, little-endian) without trusting any of its bytes.

Purpose: give the metadata and the tensors of a GGUF file as Python values and float32 arrays.
Every count, offset and length is compared with the bytes left before it is used; what does not
fit raises GgufError naming the file, the field, the value and the limit.

    with GgufFile("model.gguf") as g:
        g.meta["general.architecture"]       # str, int, float, bool or a list of those
        g.shape("token_embd.weight")         # slowest dimension first, as numpy counts
        g.load("token_embd.weight")          # float32 array, owned by the caller

Types dequantised: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q6_K. Needs numpy only.
Thread: a GgufFile belongs to one thread.
"""
import mmap
import struct

import numpy as np

MAGIC = b"GGUF"
MAX_TENSORS = 1 << 16
MAX_KEYS = 1 << 16
MAX_DIMS = 4
MAX_STRING_BYTES = 1 << 24
MAX_ARRAY_ITEMS = 1 << 24
MAX_ARRAY_DEPTH = 4
MAX_ALIGNMENT = 1 << 16

T_BOOL, T_STRING, T_ARRAY = 7, 8, 9
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B",
           10: "<Q", 11: "<q", 12: "<d"}


class GgufError(ValueError):
    """A file that is not what it says; the message names file, field, value and limit."""


# ------------------------------------------------------------------ blocks to float32
# Each function takes uint8 [n_blocks, block_bytes] and returns float32 [n_blocks, values].

def _half(b):
    return np.ascontiguousarray(b).view("<f2").astype(np.float32)


def _nibbles(b):
    """16 bytes -> 32 values: the low nibbles are the first half, the high ones the second."""
    return np.concatenate([b & 15, b >> 4], axis=1)


def _fifth_bits(b):
    """4 bytes -> 32 values of 0 or 16."""
    return np.unpackbits(b, axis=1, bitorder="little") << 4


def _q4_0(b):
    return _half(b[:, 0:2]) * (_nibbles(b[:, 2:]).astype(np.float32) - 8)


def _q4_1(b):
    return _half(b[:, 0:2]) * _nibbles(b[:, 4:]).astype(np.float32) + _half(b[:, 2:4])


def _q5_0(b):
    q = _nibbles(b[:, 6:]) | _fifth_bits(b[:, 2:6])
    return _half(b[:, 0:2]) * (q.astype(np.float32) - 16)


def _q5_1(b):
    q = _nibbles(b[:, 8:]) | _fifth_bits(b[:, 4:8])
    return _half(b[:, 0:2]) * q.astype(np.float32) + _half(b[:, 2:4])


def _q8_0(b):
    return _half(b[:, 0:2]) * np.ascontiguousarray(b[:, 2:]).view(np.int8).astype(np.float32)


def _q6_k(b):
    """256 values: two halves of 128, each four groups of 32; a signed 8-bit scale per 16 values."""
    low = b[:, 0:128].reshape(-1, 2, 64)
    high = b[:, 128:192].reshape(-1, 2, 32)
    groups = [(low[:, :, 0:32] & 15) | ((high & 3) << 4),
              (low[:, :, 32:64] & 15) | (((high >> 2) & 3) << 4),
              (low[:, :, 0:32] >> 4) | (((high >> 4) & 3) << 4),
              (low[:, :, 32:64] >> 4) | ((high >> 6) << 4)]
    q = np.stack(groups, axis=2).reshape(-1, 16, 16).astype(np.float32) - 32
    scale = np.ascontiguousarray(b[:, 192:208]).view(np.int8).astype(np.float32)
    return (_half(b[:, 208:210])[:, :, None] * scale[:, :, None] * q).reshape(-1, 256)


def _bf16(b):
    return (b.view("<u2").astype(np.uint32) << 16).view(np.float32)


# ggml type number: name, values per block, bytes per block, function
TYPES = {
    0: ("F32", 1, 4, lambda b: b.view("<f4").astype(np.float32)),
    1: ("F16", 1, 2, lambda b: b.view("<f2").astype(np.float32)),
    2: ("Q4_0", 32, 18, _q4_0),
    3: ("Q4_1", 32, 20, _q4_1),
    6: ("Q5_0", 32, 22, _q5_0),
    7: ("Q5_1", 32, 24, _q5_1),
    8: ("Q8_0", 32, 34, _q8_0),
    14: ("Q6_K", 256, 210, _q6_k),
    30: ("BF16", 1, 2, _bf16),
}


class _Cursor:
    """A position in untrusted bytes that never passes their end."""

    def __init__(self, path, data):
        self.path, self.data, self.pos = path, data, 0

    def fail(self, what):
        raise GgufError("%s: byte %d: %s" % (self.path, self.pos, what))

    def take(self, n, what):
        left = len(self.data) - self.pos
        if n > left:
            self.fail("%s needs %d bytes, %d are left" % (what, n, left))
        self.pos += n
        return self.data[self.pos - n:self.pos]

    def number(self, fmt, what):
        return struct.unpack(fmt, self.take(struct.calcsize(fmt), what))[0]

    def count(self, fmt, limit, what):
        n = self.number(fmt, what)
        if n > limit:
            self.fail("%s is %d, the limit is %d" % (what, n, limit))
        return n

    def string(self, what):
        raw = self.take(self.count("<Q", MAX_STRING_BYTES, "length of " + what), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return self.fail("%s is not UTF-8" % what)

    def value(self, kind, what, depth=0):
        if kind == T_STRING:
            return self.string(what)
        if kind == T_ARRAY:
            if depth == MAX_ARRAY_DEPTH:
                self.fail("%s nests arrays deeper than %d" % (what, MAX_ARRAY_DEPTH))
            item = self.number("<I", "item type of " + what)
            n = self.count("<Q", MAX_ARRAY_ITEMS, "length of " + what)
            return self.array(item, n, what, depth + 1)
        if kind not in SCALARS:
            self.fail("%s has the unknown value type %d" % (what, kind))
        v = self.number(SCALARS[kind], what)
        return bool(v) if kind == T_BOOL else v

    def array(self, item, n, what, depth):
        if item in SCALARS and item != T_BOOL:
            fmt = SCALARS[item]
            return np.frombuffer(self.take(n * struct.calcsize(fmt), what), fmt).tolist()
        return [self.value(item, what, depth) for _ in range(n)]


class GgufFile:
    """An open GGUF file: `meta` (dict) and `tensors` (name -> (type, shape, offset, bytes))."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as f:
            f.seek(0, 2)
            if f.tell() < 24:
                raise GgufError("%s: %d bytes, a GGUF header needs 24" % (path, f.tell()))
            self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self._read_header()
        except BaseException:
            self._map.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._map.close()

    def shape(self, name):
        return self._entry(name)[1]

    def load(self, name):
        """Dequantise one tensor to a new float32 array of its shape."""
        kind, shape, offset, size = self._entry(name)
        _, _, block_bytes, to_f32 = TYPES[kind]
        raw = np.frombuffer(self._map[offset:offset + size], np.uint8)
        return to_f32(raw.reshape(-1, block_bytes)).reshape(shape)

    def _entry(self, name):
        if name not in self.tensors:
            raise GgufError("%s: no tensor %s among %d" % (self.path, name, len(self.tensors)))
        return self.tensors[name]

    def _read_header(self):
        c = _Cursor(self.path, self._map)
        if c.take(4, "magic") != MAGIC:
            raise GgufError("%s: starts with %r, not %r" % (self.path, self._map[0:4], MAGIC))
        version = c.number("<I", "version")
        if version not in (2, 3):
            c.fail("version is %d, known are 2 and 3" % version)
        n_tensors = c.count("<Q", MAX_TENSORS, "tensor count")
        n_keys = c.count("<Q", MAX_KEYS, "metadata count")
        self.meta = {}
        for _ in range(n_keys):
            key = c.string("metadata key")
            if key in self.meta:
                c.fail("metadata key %s occurs twice" % key)
            self.meta[key] = c.value(c.number("<I", "type of " + key), key)
        infos = [self._read_info(c) for _ in range(n_tensors)]
        align = self.meta.get("general.alignment", 32)
        if not isinstance(align, int) or not 1 <= align <= MAX_ALIGNMENT:
            c.fail("general.alignment is %r, the limit is %d" % (align, MAX_ALIGNMENT))
        self._place(infos, (c.pos + align - 1) // align * align, align)

    @staticmethod
    def _read_info(c):
        name = c.string("tensor name")
        n_dims = c.count("<I", MAX_DIMS, "dimension count of " + name)
        dims = [c.number("<Q", "dimension of " + name) for _ in range(n_dims)]
        return name, dims, c.number("<I", "type of " + name), c.number("<Q", "offset of " + name)

    def _place(self, infos, base, align):
        self.tensors = {}
        total = len(self._map)
        for name, dims, kind, offset in infos:
            where = "%s: tensor %s: " % (self.path, name)
            if name in self.tensors:
                raise GgufError(where + "occurs twice")
            if kind not in TYPES:
                raise GgufError(where + "type %d is not one of %s" % (kind, sorted(TYPES)))
            type_name, values, block_bytes, _ = TYPES[kind]
            n = 1
            for d in dims:
                n *= d
            if not dims or n == 0 or dims[0] % values:
                raise GgufError(where + "dims %s do not hold whole %s blocks of %d"
                                % (dims, type_name, values))
            size = n // values * block_bytes
            if offset % align or base + offset + size > total:
                raise GgufError(where + "bytes %d+%d do not fit the %d-byte file (alignment %d)"
                                % (base + offset, size, total, align))
            self.tensors[name] = (kind, tuple(reversed(dims)), base + offset, size)
