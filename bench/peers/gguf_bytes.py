"""What a step of a GGUF file's model reads and computes, from the header alone. Only the standard library."""
import struct

BLOCKS = {0: (1, 4), 1: (1, 2), 30: (1, 2), 8: (32, 34), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 10: (256, 84),
          11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210)}  # type: values, bytes
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class _Reader:
    def __init__(self, f):
        self.f = f

    def scalar(self, code):
        return struct.unpack("<" + code, self.f.read(struct.calcsize("<" + code)))[0]

    def text(self):
        return self.f.read(self.scalar("Q")).decode(errors="replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, n = self.scalar("I"), self.scalar("Q")
            if inner in SCALARS:
                self.f.seek(n * struct.calcsize("<" + SCALARS[inner]), 1)
                return n
            return [self.value(inner) for _ in range(n)] and n
        return self.scalar(SCALARS[kind])


def read(path):
    """(metadata, {tensor: (shape, bytes)}); arrays are given by their length."""
    with open(path, "rb") as f:
        r = _Reader(f)
        if f.read(4) != b"GGUF" or r.scalar("I") not in (2, 3):
            raise ValueError(f"{path}: not GGUF 2 or 3")
        tensors, pairs = r.scalar("Q"), r.scalar("Q")
        meta = {}
        for _ in range(pairs):
            name = r.text()
            meta[name] = r.value(r.scalar("I"))
        out = {}
        for _ in range(tensors):
            name = r.text()
            shape = [r.scalar("Q") for _ in range(r.scalar("I"))]
            kind = r.scalar("I")
            r.scalar("Q")
            n = 1
            for d in shape:
                n *= d
            values, size = BLOCKS[kind]
            out[name] = (shape, n // values * size)
        return meta, out


class Work:
    """Bytes and multiply-adds (times two) of one step. `experts`: distinct experts that a layer's rows touch."""

    def __init__(self, path):
        meta, tensors = read(path)
        arch = meta["general.architecture"]
        self.layers = meta[f"{arch}.block_count"]
        self.experts = meta[f"{arch}.expert_count"]
        self.top_k = meta[f"{arch}.expert_used_count"]
        self.vocab = tensors["token_embd.weight"][0][1]
        kv_heads = meta[f"{arch}.attention.head_count_kv"]
        head = meta.get(f"{arch}.attention.key_length") or meta[f"{arch}.embedding_length"] // meta[f"{arch}.attention.head_count"]
        self.kv_bytes = 2 * 4 * self.layers * kv_heads * head  # of a token, f32
        self.expert_bytes = sum(b for name, (_, b) in tensors.items() if "_exps." in name) / self.experts
        expert_values = sum(s[0] * s[1] for name, (s, _) in tensors.items() if "_exps." in name)
        always = {n: t for n, t in tensors.items() if "_exps." not in n and n != "token_embd.weight"}
        if "output.weight" not in tensors:
            always["token_embd.weight"] = tensors["token_embd.weight"]
        self.head = "output.weight" if "output.weight" in tensors else "token_embd.weight"
        self.other_bytes = sum(b for _, b in always.values())
        values = [s[0] * s[1] for n, (s, _) in always.items() if len(s) == 2 and n != self.head]
        self.row_flops = 2.0 * (sum(values) + expert_values * self.top_k)
        self.head_flops = 2.0 * tensors[self.head][0][0] * tensors[self.head][0][1]

    def uniform_experts(self, rows):
        return self.experts * (1 - (1 - self.top_k / self.experts) ** rows)

    def decode_seconds(self, rows, experts, gbs, gflops, depth=0):
        read = self.other_bytes + experts * self.expert_bytes + rows * depth * self.kv_bytes
        return max(read / (gbs * 1e9), rows * (self.row_flops + self.head_flops) / (gflops * 1e9))

    def prefill_seconds(self, rows, gflops):
        return (rows * self.row_flops + self.head_flops) / (gflops * 1e9)
