#!/usr/bin/env python3
"""Gives a config.json (Qwen3-MoE) weights, for measurements of speed with real kernels.

    bench/lab/random_model.py bench/lab/models/balanced build/models/balanced

Writes OUT/config.json and OUT/model.safetensors in bf16: norms are 1, all other weights have random
signs and magnitudes of 2^-7 to 2^-3 in log-uniform octaves, never zero or denormal, so that no fast
path flatters a measurement. Answers are nonsense; equal configurations give equal bytes. An OUT that
has the same config.json already is left as it is. Only the standard library."""
import argparse
import json
import pathlib
import random
import struct

POOL_VALUES = 1 << 20


def tensors(c):
    d, head, f = c["hidden_size"], c["head_dim"], c["moe_intermediate_size"]
    q, kv = c["num_attention_heads"] * head, c["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (c["vocab_size"], d)
    for layer in range(c["num_hidden_layers"]):
        base = f"model.layers.{layer}."
        yield base + "input_layernorm.weight", (d,)
        yield base + "self_attn.q_proj.weight", (q, d)
        yield base + "self_attn.k_proj.weight", (kv, d)
        yield base + "self_attn.v_proj.weight", (kv, d)
        yield base + "self_attn.o_proj.weight", (d, q)
        yield base + "self_attn.q_norm.weight", (head,)
        yield base + "self_attn.k_norm.weight", (head,)
        yield base + "post_attention_layernorm.weight", (d,)
        yield base + "mlp.gate.weight", (c["num_experts"], d)
        for expert in range(c["num_experts"]):
            name = f"{base}mlp.experts.{expert}."
            yield name + "gate_proj.weight", (f, d)
            yield name + "up_proj.weight", (f, d)
            yield name + "down_proj.weight", (d, f)
    yield "model.norm.weight", (d,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (c["vocab_size"], d)


def pool_of(rng):
    """bf16 bytes: the low byte has an exponent bit and the mantissa, the high one sign and exponent."""
    high = bytes(0x3C | (byte & 1) | (byte & 0x80) for byte in range(256))
    values = bytearray(2 * POOL_VALUES)
    values[0::2] = rng.randbytes(POOL_VALUES)
    values[1::2] = rng.randbytes(POOL_VALUES).translate(high)
    return bytes(values)


def values_of(rng, pool, shape):
    if len(shape) == 1:
        return struct.pack("<H", 0x3F80) * shape[0]
    left, parts = shape[0] * shape[1], []
    while left:
        n = min(left, POOL_VALUES // 2)
        at = 2 * rng.randrange(POOL_VALUES - n + 1)
        parts.append(pool[at:at + 2 * n])
        left -= n
    return b"".join(parts)


def write(config_path, out):
    """Weights for the configuration in the folder `out`, unless they are there."""
    text = config_path.read_text()
    if (out / "config.json").exists() and (out / "config.json").read_text() == text:
        return
    config = json.loads(text)
    rng, header, at = random.Random(1), {}, 0
    for name, shape in tensors(config):
        n_bytes = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    out.mkdir(parents=True, exist_ok=True)
    pool = pool_of(rng)
    with open(out / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for _, shape in tensors(config):
            f.write(values_of(rng, pool, shape))
    (out / "config.json").write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=pathlib.Path, help="folder with a config.json")
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    write(args.config / "config.json", args.out)


if __name__ == "__main__":
    main()
