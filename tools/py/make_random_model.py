#!/usr/bin/env python3
"""Write a random-weight Qwen3MoeForCausalLM folder for benchmarks and tests of shape.

    make_random_model.py tiny|small|mid OUT_DIR [--seed N]

OUT_DIR becomes a Hugging Face folder (bf16, sharded safetensors with index, tokenizer) that
answers nonsense at the speed of its shape:

    name    hidden layers heads kv head_dim experts top-k expert_ffn vocab   size
    tiny       256      2     4  2       64       8     2        256  2048   10 MB
    small     1024     16    16  4       64      32     4        512 32000   1.8 GB
    mid       2048     16    16  4      128      64     8       1024 50304  13.6 GB

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
    "small": dict(hidden=1024, layers=16, heads=16, kv=4, head_dim=64, experts=32, top_k=4, ffn=512,
                  vocab=32000),
    "mid": dict(hidden=2048, layers=16, heads=16, kv=4, head_dim=128, experts=64, top_k=8, ffn=1024,
                vocab=50304),
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


def tensors(s):
    """(name, shape, standard deviation or None for a norm) in file order."""
    d, hd, f = s["hidden"], s["head_dim"], s["ffn"]
    q, kv = s["heads"] * hd, s["kv"] * hd
    yield "model.embed_tokens.weight", (s["vocab"], d), 1.0
    for l in range(s["layers"]):
        base = "model.layers.%d." % l
        yield base + "input_layernorm.weight", (d,), None
        yield base + "self_attn.q_proj.weight", (q, d), d ** -0.5
        yield base + "self_attn.k_proj.weight", (kv, d), d ** -0.5
        yield base + "self_attn.v_proj.weight", (kv, d), d ** -0.5
        yield base + "self_attn.o_proj.weight", (d, q), q ** -0.5
        yield base + "self_attn.q_norm.weight", (hd,), None
        yield base + "self_attn.k_norm.weight", (hd,), None
        yield base + "post_attention_layernorm.weight", (d,), None
        yield base + "mlp.gate.weight", (s["experts"], d), d ** -0.5
        for e in range(s["experts"]):
            expert = base + "mlp.experts.%d." % e
            yield expert + "gate_proj.weight", (f, d), d ** -0.5
            yield expert + "up_proj.weight", (f, d), d ** -0.5
            yield expert + "down_proj.weight", (d, f), f ** -0.5
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


def main():
    ap = argparse.ArgumentParser(description="Random-weight Qwen3-MoE folder.")
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
    for name, value in (("config.json", config(s, end)), ("tokenizer.json", tokenizer),
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
