#!/usr/bin/env python3
"""Write a random-weight model folder for benchmarks and tests of shape.

    make_random_model.py tiny|pair|small|mid|latent|hybrid OUT_DIR [--seed N] [--set KEY=N ...]

OUT_DIR becomes a Hugging Face folder (bf16, sharded safetensors with index, tokenizer) that
answers nonsense at the speed of its shape:

    name    hidden layers heads kv head_dim experts top-k expert_ffn vocab   size
    tiny       256      2     4  2       64       8     2        256  2048   10 MB
    pair      1024      2    16  4       64      16     4        512  2048   0.12 GB
    small     1024     16    16  4       64      32     4        512 32000   1.8 GB
    mid       2048     16    16  4      128      64     8       1024 50304  13.6 GB
    latent    2048      4    16  -      192       8     2        512  4096   0.33 GB
    hybrid    1024      8     8  2      256      32     4        256  4096   0.63 GB

All are Qwen3MoeForCausalLM but `latent`, which is DeepseekV2ForCausalLM: attention as wide as
V2-Lite's (latents of 512, heads of 128 + 64 and 128), the first block dense, a shared expert; and
`hybrid`, which is Qwen3NextForCausalLM: three of four blocks have gated DeltaNet (16 value heads of
128 over 8 key heads of 128), the others gated attention; a shared expert; a block that predicts a
further token (`--set mtp=0`: none). `--set layers=48` and the like change a number of SHAPES.

Matrices are N(0, 1/fan_in), embeddings N(0, 1), norms 1 + N(0, 0.05) (Qwen3-Next stores them less
1), never zero, so that no fast path or denormal number flatters a measurement. Values come from one pool of 16 Mi numbers read at
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
    "hybrid": dict(hidden=1024, layers=8, heads=8, kv=2, head_dim=256, experts=32, top_k=4, ffn=256,
                   vocab=4096, full=4, k_heads=8, v_heads=16, k_dim=128, v_dim=128, taps=4, shared=256,
                   mtp=1),
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

    def around(self, shape, mean, std):
        return (mean + std * self.rng.standard_normal(shape)).astype(np.float32)

    def values(self, shape, spread):
        if isinstance(spread, tuple):
            return self.around(shape, *spread)
        return self.normal(shape, spread)


NORM, NORM_LESS_1 = (1, 0.05), (0, 0.05)
STEP, RATE = (-3, 1), (0.7, 0.7)  # states of DeltaNet that last for one position or for hundreds


def attention(s, base):
    d, hd = s["hidden"], s["head_dim"]
    q, kv = s["heads"] * hd, s["kv"] * hd
    yield base + "q_proj.weight", (q, d), d ** -0.5
    yield base + "k_proj.weight", (kv, d), d ** -0.5
    yield base + "v_proj.weight", (kv, d), d ** -0.5
    yield base + "o_proj.weight", (d, q), q ** -0.5
    yield base + "q_norm.weight", (hd,), NORM
    yield base + "k_norm.weight", (hd,), NORM


def gated_attention(s, base):
    for name, shape, spread in attention(s, base):
        if name.endswith("q_proj.weight"):
            shape = (2 * shape[0], shape[1])
        yield name, shape, NORM_LESS_1 if spread == NORM else spread


def linear_attention(s, base):
    d, k, v = s["hidden"], s["k_heads"] * s["k_dim"], s["v_heads"] * s["v_dim"]
    yield base + "in_proj_qkvz.weight", (2 * k + 2 * v, d), d ** -0.5
    yield base + "in_proj_ba.weight", (2 * s["v_heads"], d), d ** -0.5
    yield base + "conv1d.weight", (2 * k + v, 1, s["taps"]), s["taps"] ** -0.5
    yield base + "dt_bias", (s["v_heads"],), STEP
    yield base + "A_log", (s["v_heads"],), RATE
    yield base + "norm.weight", (s["v_dim"],), NORM
    yield base + "out_proj.weight", (d, v), v ** -0.5


def latent_attention(s, base):
    d, lora, heads, o = s["hidden"], s["lora"], s["heads"], s["heads"] * s["v"]
    yield base + "q_proj.weight", (heads * (s["nope"] + s["rope"]), d), d ** -0.5
    yield base + "kv_a_proj_with_mqa.weight", (lora + s["rope"], d), d ** -0.5
    yield base + "kv_a_layernorm.weight", (lora,), NORM
    yield base + "kv_b_proj.weight", (heads * (s["nope"] + s["v"]), lora), lora ** -0.5
    yield base + "o_proj.weight", (d, o), o ** -0.5


def feed_forward(d, f, base):
    yield base + "gate_proj.weight", (f, d), d ** -0.5
    yield base + "up_proj.weight", (f, d), d ** -0.5
    yield base + "down_proj.weight", (d, f), f ** -0.5


def hybrid_block(s, base, full):
    d, f = s["hidden"], s["ffn"]
    yield base + "input_layernorm.weight", (d,), NORM_LESS_1
    if full:
        yield from gated_attention(s, base + "self_attn.")
    else:
        yield from linear_attention(s, base + "linear_attn.")
    yield base + "post_attention_layernorm.weight", (d,), NORM_LESS_1
    yield base + "mlp.gate.weight", (s["experts"], d), d ** -0.5
    for e in range(s["experts"]):
        yield from feed_forward(d, f, base + "mlp.experts.%d." % e)
    yield from feed_forward(d, s["shared"], base + "mlp.shared_expert.")
    yield base + "mlp.shared_expert_gate.weight", (1, d), d ** -0.5


def hybrid_tensors(s):
    d = s["hidden"]
    yield "model.embed_tokens.weight", (s["vocab"], d), 1.0
    for l in range(s["layers"]):
        yield from hybrid_block(s, "model.layers.%d." % l, (l + 1) % s["full"] == 0)
    yield "model.norm.weight", (d,), NORM_LESS_1
    yield "lm_head.weight", (s["vocab"], d), d ** -0.5
    if s["mtp"]:
        yield "mtp.fc.weight", (d, 2 * d), (2 * d) ** -0.5
        yield from hybrid_block(s, "mtp.layers.0.", True)
        for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
            yield "mtp.%s.weight" % name, (d,), NORM_LESS_1


def tensors(s):
    """(name, shape, standard deviation or (mean, standard deviation) of a short one) in file order."""
    if "full" in s:
        yield from hybrid_tensors(s)
        return
    d, f = s["hidden"], s["ffn"]
    yield "model.embed_tokens.weight", (s["vocab"], d), 1.0
    for l in range(s["layers"]):
        base = "model.layers.%d." % l
        yield base + "input_layernorm.weight", (d,), NORM
        yield from (latent_attention if "lora" in s else attention)(s, base + "self_attn.")
        yield base + "post_attention_layernorm.weight", (d,), NORM
        if "lora" in s and l == 0:
            yield from feed_forward(d, f * s["top_k"], base + "mlp.")
            continue
        yield base + "mlp.gate.weight", (s["experts"], d), d ** -0.5
        for e in range(s["experts"]):
            yield from feed_forward(d, f, base + "mlp.experts.%d." % e)
        if "lora" in s:
            yield from feed_forward(d, f, base + "mlp.shared_experts.")
    yield "model.norm.weight", (d,), NORM
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


def hybrid_config(s, end):
    return {
        "architectures": ["Qwen3NextForCausalLM"], "attention_dropout": 0.0, "bos_token_id": end,
        "decoder_sparse_step": 1, "eos_token_id": end, "full_attention_interval": s["full"],
        "head_dim": s["head_dim"], "hidden_act": "silu", "hidden_size": s["hidden"],
        "initializer_range": 0.02, "intermediate_size": s["ffn"] * s["top_k"],
        "linear_conv_kernel_dim": s["taps"], "linear_key_head_dim": s["k_dim"],
        "linear_num_key_heads": s["k_heads"], "linear_num_value_heads": s["v_heads"],
        "linear_value_head_dim": s["v_dim"], "max_position_embeddings": CONTEXT,
        "mlp_only_layers": [], "model_type": "qwen3_next", "moe_intermediate_size": s["ffn"],
        "norm_topk_prob": True, "num_attention_heads": s["heads"], "num_experts": s["experts"],
        "num_experts_per_tok": s["top_k"], "num_hidden_layers": s["layers"],
        "num_key_value_heads": s["kv"], "output_router_logits": False,
        "partial_rotary_factor": 0.25, "rms_norm_eps": EPS, "rope_scaling": None,
        "rope_theta": 10000000, "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": s["shared"], "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
        "vocab_size": s["vocab"],
    }


def change(s, sets):
    """The shape with KEY=N of the command line."""
    s = dict(s)
    for text in sets:
        key, _, value = text.partition("=")
        if key not in s or not value.isdigit():
            raise SystemExit("make_random_model: --set %s: KEY=N wanted, KEY of %s" % (text, ", ".join(s)))
        s[key] = int(value)
    return s


def main():
    ap = argparse.ArgumentParser(description="Random-weight model folder.")
    ap.add_argument("shape", choices=SHAPES)
    ap.add_argument("out_dir")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--set", action="append", default=[], metavar="KEY=N")
    args = ap.parse_args()
    start, s, pool = time.monotonic(), change(SHAPES[args.shape], args.set), Pool(args.seed)
    os.makedirs(args.out_dir, exist_ok=True)
    if os.listdir(args.out_dir):
        print("make_random_model: %s is not empty" % args.out_dir, file=sys.stderr)
        return 1
    rows = list(tensors(s))
    with ShardWriter(args.out_dir, [(name, shape) for name, shape, _ in rows], SHARD_BYTES) as out:
        for name, shape, std in rows:
            out.add(name, pool.values(shape, std))
    end, tokenizer = tokenizer_json(s["vocab"])
    config_of = latent_config if "lora" in s else hybrid_config if "full" in s else config
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
