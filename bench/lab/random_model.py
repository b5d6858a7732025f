#!/usr/bin/env python3
"""Gives a config.json (Qwen3-MoE, gpt-oss, DeepSeek-V3) weights, for measurements of speed with real kernels.

    bench/lab/random_model.py bench/lab/models/balanced build/models/balanced

Writes OUT/config.json and OUT/model.safetensors in bf16: norms are 1, all other weights have random
signs and magnitudes of 2^-7 to 2^-3 in log-uniform octaves, never zero or denormal, so that no fast
path flatters a measurement. Routed experts of DeepSeek-V3 are F8_E4M3 with scales of 128 x 128, any
codes but NaN. Answers are nonsense; equal configurations give equal bytes. An OUT that
has the same config.json already is left as it is. Only the standard library."""
import argparse
import json
import math
import pathlib
import random
import struct

POOL_VALUES = 1 << 20


def of_qwen3(c):
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


def of_gpt_oss(c):
    d, f, experts = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    yield "model.embed_tokens.weight", (c["vocab_size"], d)
    for layer in range(c["num_hidden_layers"]):
        base = f"model.layers.{layer}."
        yield base + "input_layernorm.weight", (d,)
        for name, n, k in (("q", q, d), ("k", kv, d), ("v", kv, d), ("o", d, q)):
            yield f"{base}self_attn.{name}_proj.weight", (n, k)
            yield f"{base}self_attn.{name}_proj.bias", (n,)
        yield base + "self_attn.sinks", (c["num_attention_heads"],)
        yield base + "post_attention_layernorm.weight", (d,)
        yield base + "mlp.router.weight", (experts, d)
        yield base + "mlp.router.bias", (experts,)
        yield base + "mlp.experts.gate_up_proj", (experts, d, 2 * f)
        yield base + "mlp.experts.gate_up_proj_bias", (experts, 2 * f)
        yield base + "mlp.experts.down_proj", (experts, f, d)
        yield base + "mlp.experts.down_proj_bias", (experts, d)
    yield "model.norm.weight", (d,)
    yield "lm_head.weight", (c["vocab_size"], d)


def of_deepseek(c):
    d, heads, latent = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    yield "model.embed_tokens.weight", (c["vocab_size"], d)
    for layer in range(c["num_hidden_layers"]):
        base = f"model.layers.{layer}."
        yield base + "input_layernorm.weight", (d,)
        yield base + "self_attn.q_a_proj.weight", (c["q_lora_rank"], d)
        yield base + "self_attn.q_a_layernorm.weight", (c["q_lora_rank"],)
        yield base + "self_attn.q_b_proj.weight", (heads * (nope + rope), c["q_lora_rank"])
        yield base + "self_attn.kv_a_proj_with_mqa.weight", (latent + rope, d)
        yield base + "self_attn.kv_a_layernorm.weight", (latent,)
        yield base + "self_attn.kv_b_proj.weight", (heads * (nope + v), latent)
        yield base + "self_attn.o_proj.weight", (d, heads * v)
        yield base + "post_attention_layernorm.weight", (d,)
        parts = [("mlp.", c["intermediate_size"], "BF16")]
        if layer >= c["first_k_dense_replace"]:
            yield base + "mlp.gate.weight", (c["n_routed_experts"], d)
            yield base + "mlp.gate.e_score_correction_bias", (c["n_routed_experts"],), "F32"
            f = c["moe_intermediate_size"]
            parts = [(f"mlp.experts.{e}.", f, "F8_E4M3") for e in range(c["n_routed_experts"])]
            parts.append(("mlp.shared_experts.", f * c["n_shared_experts"], "BF16"))
        for part, f, dtype in parts:
            for name, n, k in (("gate", f, d), ("up", f, d), ("down", d, f)):
                yield f"{base}{part}{name}_proj.weight", (n, k), dtype
                if dtype != "BF16":
                    yield f"{base}{part}{name}_proj.weight_scale_inv", (-(-n // 128), -(-k // 128)), "F32"
    yield "model.norm.weight", (d,)
    yield "lm_head.weight", (c["vocab_size"], d)


def tensors(c):
    """Name, shape and type of each."""
    of = {"gpt_oss": of_gpt_oss, "deepseek_v3": of_deepseek}.get(c.get("model_type"), of_qwen3)
    for name, shape, *dtype in of(c):
        yield name, shape, dtype[0] if dtype else "BF16"


BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1}
NO_NAN = bytes(byte if byte & 0x7F != 0x7F else byte ^ 1 for byte in range(256))


def pool_of(rng):
    """bf16 bytes: the low byte has an exponent bit and the mantissa, the high one sign and exponent."""
    high = bytes(0x3C | (byte & 1) | (byte & 0x80) for byte in range(256))
    values = bytearray(2 * POOL_VALUES)
    values[0::2] = rng.randbytes(POOL_VALUES)
    values[1::2] = rng.randbytes(POOL_VALUES).translate(high)
    return bytes(values)


def values_of(rng, pool, shape, dtype):
    if dtype == "F32" or len(shape) == 1:
        one = struct.pack("<f", 2.0 ** -9 if len(shape) == 2 else 1.0)
        return (one if dtype == "F32" else one[2:]) * math.prod(shape)
    left, parts = math.prod(shape) * BYTES[dtype] // 2, []
    while left:
        n = min(left, POOL_VALUES // 2)
        at = 2 * rng.randrange(POOL_VALUES - n + 1)
        parts.append(pool[dtype][at:at + 2 * n])
        left -= n
    return b"".join(parts)


def write(config_path, out):
    """Weights for the configuration in the folder `out`, unless they are there."""
    text = config_path.read_text()
    if (out / "config.json").exists() and (out / "config.json").read_text() == text:
        return
    config = json.loads(text)
    rng, header, at = random.Random(1), {}, 0
    for name, shape, dtype in tensors(config):
        n_bytes = BYTES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    out.mkdir(parents=True, exist_ok=True)
    pool = {"BF16": pool_of(rng), "F8_E4M3": random.Random(2).randbytes(2 * POOL_VALUES).translate(NO_NAN)}
    with open(out / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for _, shape, dtype in tensors(config):
            f.write(values_of(rng, pool, shape, dtype))
    (out / "config.json").write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=pathlib.Path, help="folder with a config.json")
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    write(args.config / "config.json", args.out)


if __name__ == "__main__":
    main()
