#!/usr/bin/env python3
"""Write a random-weight model folder for benchmarks and tests of shape.

    make_random_model.py tiny|pair|small|mid|latent OUT_DIR [--seed N]

OUT_DIR becomes a Hugging Face folder (bf16, sharded safetensors with index, tokenizer) that
answers nonsense at the speed of its shape:

    name    hidden layers heads kv head_dim experts top-k expert_ffn vocab   size
    tiny       256      2     4  2       64       8     2        256  2048   10 MB
    pair      1024      2    16  4       64      16     4        512  2048   0.12 GB
    small     1024     16    16  4       64      32     4        512 32000   1.8 GB
    mid       2048     16    16  4      128      64     8       1024 50304  13.6 GB
    latent    2048      4    16  -      192       8     2        512  4096   0.33 GB

All are Qwen3MoeForCausalLM but `latent`, which is DeepseekV2ForCausalLM: attention as wide as
V2-Lite's (latents of 512, heads of 128 + 64 and 128), the first block dense, a shared expert.

Matrices are N(0, 1/fan_in), embeddings N(0, 1), norms 1 + N(0, 0.05), never zero, so that no fast
path or denormal number flatters a measurement. Values come from one pool of 16 Mi numbers read at
random offsets: the statistics of routing are those of independent weights, at the speed of the
disk. The tokenizer is a byte-level BPE with every pair of small letters as a merge; other ids up
to the vocabulary's size are fillers. Equal arguments give equal bytes on one numpy version.
Needs numpy only.
"""
import argparse
import os
import sys
import time

import numpy as np

from hf_write import ShardWriter, bf16_from_f32, json_bytes, write_file

SHAPES = {
    "tiny": dict(hidden=256, layers=2, heads=4, kv=2, head_dim=64, experts=8, top_k=2, ffn=256,
                 vocab=2048),
    "pair": dict(hidden=1024, layers=2, heads=16, kv=4, head_dim=64, experts=16, top_k=4, ffn=512,
                 vocab=2048),
    "small": dict(hidden=1024, layers=16, heads=16, kv=4, head_dim=64, experts=32, top_k=4, ffn=512,
                  vocab=32000),
    "mid": dict(hidden=2048, layers=16, heads=16, kv=4, head_dim=128, experts=64, top_k=8, ffn=1024,
                vocab=50304),
    "latent": dict(hidden=2048, layers=4, heads=16, experts=8, top_k=2, ffn=512, vocab=4096,
                   lora=512, nope=128, rope=64, v=128),
}
CONTEXT, THETA, EPS = 4096, 1000000.0, 1e-6
POOL = 1 << 24
SHARD_BYTES = 2_000_000_000
LETTERS = "abcdefghijklmnopqrstuvwxyz"
QWEN_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
              r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


class Pool:
    """bf16 bits of N(0, std) of any shape, cut from one pool at random offsets."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.base = self.rng.standard_normal(POOL, dtype=np.float32)
        self.base[self.base == 0] = 1
        self.by_std = {}

    def normal(self, shape, std):
        if std not in self.by_std:
            self.by_std[std] = bf16_from_f32(self.base * np.float32(std))
        pool, left, parts = self.by_std[std], int(np.prod(shape)), []
        while left:
            n = min(left, POOL // 2)
            at = int(self.rng.integers(0, POOL - n + 1))
            parts.append(pool[at:at + n])
            left -= n
        return np.concatenate(parts).reshape(shape)

    def norm(self, shape):
        return (1 + 0.05 * self.rng.standard_normal(shape)).astype(np.float32)


def attention(s, base):
    d, hd = s["hidden"], s["head_dim"]
    q, kv = s["heads"] * hd, s["kv"] * hd
    yield base + "q_proj.weight", (q, d), d ** -0.5
    yield base + "k_proj.weight", (kv, d), d ** -0.5
    yield base + "v_proj.weight", (kv, d), d ** -0.5
    yield base + "o_proj.weight", (d, q), q ** -0.5
    yield base + "q_norm.weight", (hd,), None
    yield base + "k_norm.weight", (hd,), None


def latent_attention(s, base):
    d, lora, heads, o = s["hidden"], s["lora"], s["heads"], s["heads"] * s["v"]
    yield base + "q_proj.weight", (heads * (s["nope"] + s["rope"]), d), d ** -0.5
    yield base + "kv_a_proj_with_mqa.weight", (lora + s["rope"], d), d ** -0.5
    yield base + "kv_a_layernorm.weight", (lora,), None
    yield base + "kv_b_proj.weight", (heads * (s["nope"] + s["v"]), lora), lora ** -0.5
    yield base + "o_proj.weight", (d, o), o ** -0.5


def feed_forward(d, f, base):
    yield base + "gate_proj.weight", (f, d), d ** -0.5
    yield base + "up_proj.weight", (f, d), d ** -0.5
    yield base + "down_proj.weight", (d, f), f ** -0.5


def tensors(s):
    """(name, shape, standard deviation or None for a norm) in file order."""
    d, f = s["hidden"], s["ffn"]
    yield "model.embed_tokens.weight", (s["vocab"], d), 1.0
    for l in range(s["layers"]):
        base = "model.layers.%d." % l
        yield base + "input_layernorm.weight", (d,), None
        yield from (latent_attention if "lora" in s else attention)(s, base + "self_attn.")
        yield base + "post_attention_layernorm.weight", (d,), None
        if "lora" in s and l == 0:
            yield from feed_forward(d, f * s["top_k"], base + "mlp.")
            continue
        yield base + "mlp.gate.weight", (s["experts"], d), d ** -0.5
        for e in range(s["experts"]):
            yield from feed_forward(d, f, base + "mlp.experts.%d." % e)
        if "lora" in s:
            yield from feed_forward(d, f, base + "mlp.shared_experts.")
    yield "model.norm.weight", (d,), None
    yield "lm_head.weight", (s["vocab"], d), d ** -0.5


def byte_letters():
    """The printable stand-in of each byte in byte-level BPE, in byte order."""
    plain = set(range(33, 127)) | set(range(161, 173)) | set(range(174, 256))
    spare = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(spare)) for b in range(256)]


def tokenizer_json(vocab_size):
    texts = byte_letters() + [a + b for a in LETTERS for b in LETTERS] + ["<|endoftext|>"]
    end = len(texts) - 1
    texts += ["[PAD%d]" % i for i in range(len(texts), vocab_size)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return end, {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": end, "content": texts[end], "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": QWEN_SPLIT}, "behavior": "Isolated",
             "invert": False},
            {**byte_level, "use_regex": False}]},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False,
                  "vocab": {text: i for i, text in enumerate(texts)},
                  "merges": [a + " " + b for a in LETTERS for b in LETTERS]},
    }


def config(s, end):
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": end, "eos_token_id": end, "decoder_sparse_step": 1,
        "head_dim": s["head_dim"], "hidden_act": "silu", "hidden_size": s["hidden"],
        "initializer_range": 0.02, "intermediate_size": s["ffn"] * s["top_k"],
        "max_position_embeddings": CONTEXT, "max_window_layers": s["layers"],
        "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": s["ffn"],
        "norm_topk_prob": True, "num_attention_heads": s["heads"], "num_experts": s["experts"],
        "num_experts_per_tok": s["top_k"], "num_hidden_layers": s["layers"],
        "num_key_value_heads": s["kv"], "output_router_logits": False, "rms_norm_eps": EPS,
        "rope_scaling": None, "rope_theta": THETA, "router_aux_loss_coef": 0.001,
        "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "use_cache": True, "use_sliding_window": False, "vocab_size": s["vocab"],
    }


def latent_config(s, end):
    return {
        "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": False, "bos_token_id": end,
        "eos_token_id": end, "first_k_dense_replace": 1, "hidden_act": "silu",
        "hidden_size": s["hidden"], "intermediate_size": s["ffn"] * s["top_k"],
        "kv_lora_rank": s["lora"], "max_position_embeddings": CONTEXT, "model_type": "deepseek_v2",
        "moe_intermediate_size": s["ffn"], "moe_layer_freq": 1, "n_group": 1,
        "n_routed_experts": s["experts"], "n_shared_experts": 1, "norm_topk_prob": False,
        "num_attention_heads": s["heads"], "num_experts_per_tok": s["top_k"],
        "num_hidden_layers": s["layers"], "num_key_value_heads": s["heads"], "q_lora_rank": None,
        "qk_nope_head_dim": s["nope"], "qk_rope_head_dim": s["rope"], "rms_norm_eps": EPS,
        "rope_scaling": None, "rope_theta": 10000, "routed_scaling_factor": 1.0,
        "scoring_func": "softmax", "tie_word_embeddings": False, "topk_group": 1,
        "topk_method": "greedy", "torch_dtype": "bfloat16", "v_head_dim": s["v"],
        "vocab_size": s["vocab"],
    }


def main():
    ap = argparse.ArgumentParser(description="Random-weight model folder.")
    ap.add_argument("shape", choices=SHAPES)
    ap.add_argument("out_dir")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    start, s, pool = time.monotonic(), SHAPES[args.shape], Pool(args.seed)
    os.makedirs(args.out_dir, exist_ok=True)
    if os.listdir(args.out_dir):
        print("make_random_model: %s is not empty" % args.out_dir, file=sys.stderr)
        return 1
    rows = list(tensors(s))
    with ShardWriter(args.out_dir, [(name, shape) for name, shape, _ in rows], SHARD_BYTES) as out:
        for name, shape, std in rows:
            out.add(name, pool.norm(shape) if std is None else pool.normal(shape, std))
    end, tokenizer = tokenizer_json(s["vocab"])
    config_of = latent_config if "lora" in s else config
    for name, value in (("config.json", config_of(s, end)), ("tokenizer.json", tokenizer),
                        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast",
                                                   "eos_token": "<|endoftext|>",
                                                   "model_max_length": CONTEXT}),
                        ("generation_config.json", {"eos_token_id": end, "do_sample": False})):
        write_file(args.out_dir, name, json_bytes(value))
    print("%s: %d tensors, %.3f G parameters, %.2f GB, %.1f s" % (
        args.out_dir, len(rows), out.total_bytes / 2e9, out.total_bytes / 1e9,
        time.monotonic() - start))
    return 0


if __name__ == "__main__":
    sys.exit(main())
