#!/usr/bin/env python3
"""A second oracle: the forward pass of every architecture in NumPy, in double precision.

  python tests/oracle/reference.py FIXTURE      deviation of its goldens, f64 against f32

Written from the papers (Mixtral arXiv:2401.04088, Qwen2 arXiv:2407.10671, Qwen3 arXiv:2505.09388,
OLMoE arXiv:2409.02060, DeepSeek-V2 arXiv:2405.04434, DeepSeek-V3 arXiv:2412.19437, GLM-4.5
arXiv:2508.06471, gpt-oss arXiv:2508.10925, gated DeltaNet arXiv:2412.06464) and from Llama 4's and Qwen3-Next's model cards
and published code, for small checkpoints: no cache, every position at once. It ties the goldens to the stored weights without torch.
"""

import json
import pathlib
import struct
import sys

import numpy as np


def e4m3():
    """The 256 values of F8_E4M3: bias 7, no infinities, NaN at all ones (arXiv:2209.05433)."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    value[code & 127 == 127] = np.nan
    return np.where(code >> 7, -value, value)


E4M3 = e4m3()


def load_weights(folder):
    """{name: float64 array} of every tensor in the folder's safetensors files."""
    out = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        raw = path.read_bytes()
        (size,) = struct.unpack_from("<Q", raw)
        header = json.loads(raw[8 : 8 + size])
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + x for x in entry["data_offsets"])
            if entry["dtype"] == "U8":
                out[name] = np.frombuffer(raw[begin:end], np.uint8).reshape(entry["shape"])
                continue
            if entry["dtype"] == "F8_E4M3":
                values = E4M3[np.frombuffer(raw[begin:end], np.uint8)]
            elif entry["dtype"] == "BF16":
                bits = np.frombuffer(raw[begin:end], "<u2").astype(np.uint32) << 16
                values = bits.view(np.float32)
            else:
                values = np.frombuffer(raw[begin:end], {"F32": "<f4", "F16": "<f2"}[entry["dtype"]])
            out[name] = values.astype(np.float64).reshape(entry["shape"])
    for name in [n for n in out if n.endswith("_scale_inv")]:
        weight = out[name.removesuffix("_scale_inv")]
        scale = out.pop(name).repeat(128, 0).repeat(128, 1)
        weight *= scale[: weight.shape[0], : weight.shape[1]]
    for name in [x for x in out if x.endswith("_blocks")]:
        stem = name.removesuffix("_blocks")
        out[stem] = mxfp4(out.pop(name), out.pop(f"{stem}_scales"))
    return out


def mxfp4(blocks, scales):
    """[experts, inputs, outputs] of codes [experts, outputs, blocks, 16] (OCP MX 1.0): the even one is low."""
    value = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    value = np.concatenate([value, -value])
    both = np.stack([value[blocks & 15], value[blocks >> 4]], -1).reshape(*blocks.shape[:-1], 32)
    wide = both * 2.0 ** (scales.astype(np.float64)[..., None] - 127)
    return wide.reshape(*blocks.shape[:2], -1).transpose(0, 2, 1)


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def swiglu(x, gate, up, down):
    g = x @ gate.T
    return (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T


def yarn(dim, theta, scaling):
    """(what pairs' frequencies are multiplied by, the factor of sin and cos): arXiv:2309.00071, 3.2, 3.4"""
    pair = np.arange(dim // 2)
    low, high = (
        dim * np.log(scaling["original_max_position_embeddings"] / (scaling.get(b, d) * 2 * np.pi)) / (2 * np.log(theta))
        for b, d in (("beta_fast", 32), ("beta_slow", 1))
    )
    if scaling.get("truncate", True):
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((pair - low) / (high - low), 0, 1)
    factor = scaling["factor"]
    gain = mscale(factor, scaling.get("mscale") or 1)
    gain /= mscale(factor, scaling.get("mscale_all_dim") or 0)
    return 1 - ramp + ramp / factor, scaling.get("attention_factor") or gain


def mscale(factor, weight):
    """DeepSeek's factor of YaRN."""
    return 0.1 * weight * np.log(factor) + 1


def rotate_llama4(x, config):
    """RoPE of pairs (2i, 2i + 1) of x [positions, heads, head_dim]; long waves are stretched (Llama 3.1)."""
    pair = np.arange(x.shape[-1] // 2)
    frequency = config["rope_theta"] ** (-2 * pair / x.shape[-1])
    scaling = config["rope_scaling"]
    if scaling:
        turns = scaling["original_max_position_embeddings"] * frequency / (2 * np.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = np.clip((turns - low) / (high - low), 0, 1)
        frequency = frequency * (kept + (1 - kept) / scaling["factor"])
    turn = np.exp(1j * np.arange(x.shape[0])[:, None] * frequency)[:, None, :]
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


def rotate(x, theta, part=1.0, scaling=None):
    """RoPE on the first `part` of x [positions, heads, head_dim]; pairs are (i, i + half of it)."""
    x, rest = np.split(x, [int(x.shape[-1] * part)], -1)
    half = x.shape[-1] // 2
    frequency = theta ** (-np.arange(half) / half)
    slower, gain = yarn(2 * half, theta, scaling) if scaling else (1, 1)
    frequency = frequency * slower
    angle = (np.arange(x.shape[0])[:, None] * frequency)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    cos, sin = gain * np.cos(angle), gain * np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)


def layer_norm(x, weight, eps=1e-5):
    return rms_norm(x - x.mean(-1, keepdims=True), weight, eps)


class Model:
    """A checkpoint folder; forward(ids) gives logits [positions, vocab]."""

    def __init__(self, folder):
        self.config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        self.w = load_weights(folder)
        self.mixtral = self.config["model_type"] == "mixtral"
        self.qwen2 = self.config["model_type"] == "qwen2_moe"
        self.qwen3_next = self.config["model_type"] == "qwen3_next"
        self.olmoe = self.config["model_type"] == "olmoe"
        self.glm = self.config["model_type"] in ("glm4_moe", "deepseek_v3")  # its router
        self.gpt_oss = self.config["model_type"] == "gpt_oss"
        self.deepseek = self.config["model_type"].startswith("deepseek")
        self.llama4 = self.config["model_type"] == "llama4_text"
        self.min_margin = 1.0

    def latent_attention(self, x, p):
        """Keys and values of all heads expanded from the latent, as trained (arXiv:2405.04434, 2.1)."""
        c, n = self.config, x.shape[0]
        heads, nope, turn = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        scaling, w = c.get("rope_scaling"), lambda name: self.w[f"{p}.{name}.weight"]
        if c["q_lora_rank"]:
            q = rms_norm(x @ w("q_a_proj").T, w("q_a_layernorm"), 1e-6) @ w("q_b_proj").T
        else:
            q = x @ w("q_proj").T
        q = q.reshape(n, heads, nope + turn)
        latent, key = np.split(x @ w("kv_a_proj_with_mqa").T, [c["kv_lora_rank"]], -1)
        both = (rms_norm(latent, w("kv_a_layernorm"), 1e-6) @ w("kv_b_proj").T).reshape(n, heads, -1)
        key = np.repeat(key[:, None, :], heads, 1)
        pairs = np.arange(turn)
        if c.get("rope_interleave", True):
            pairs = np.concatenate([pairs[::2], pairs[1::2]])
        q_turn, k_turn = (rotate(t[..., pairs], c["rope_theta"], 1.0, scaling) for t in (q[..., nope:], key))
        scores = np.einsum("qhd,khd->hqk", q[..., :nope], both[..., :nope])
        scores += np.einsum("qhd,khd->hqk", q_turn, k_turn)
        scores /= np.sqrt(nope + turn)
        if scaling and scaling.get("mscale_all_dim"):
            scores *= mscale(scaling["factor"], scaling["mscale_all_dim"]) ** 2
        scores += np.triu(np.full((n, n), -np.inf), 1)
        mixed = np.einsum("hqk,khd->qhd", softmax(scores), both[..., nope:])
        return mixed.reshape(n, -1) @ w("o_proj").T

    def attention(self, x, p, windowed=False):
        if self.deepseek:
            return self.latent_attention(x, p)
        c = self.config
        heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        dim = c.get("head_dim") or c["hidden_size"] // heads
        n = x.shape[0]
        q, k, v = (x @ self.w[f"{p}.{name}_proj.weight"].T for name in "qkv")
        if self.qwen2 or self.config.get("attention_bias"):
            q, k, v = (t + self.w[f"{p}.{n}_proj.bias"] for t, n in zip((q, k, v), "qkv"))
        if self.olmoe:
            q, k = (rms_norm(t, self.w[f"{p}.{n}_norm.weight"], c["rms_norm_eps"]) for t, n in ((q, "q"), (k, "k")))
            limit = c["clip_qkv"] or np.inf
            q, k, v = (np.clip(t, -limit, limit) for t in (q, k, v))
        q, k, v = (t.reshape(n, -1, dim) for t in (q, k, v))
        if c["model_type"] in ("qwen3_moe", "qwen3_next") or c.get("use_qk_norm"):
            q = rms_norm(q, self.w[f"{p}.q_norm.weight"], c["rms_norm_eps"])
            k = rms_norm(k, self.w[f"{p}.k_norm.weight"], c["rms_norm_eps"])
        part = c.get("partial_rotary_factor", 1.0)
        q, k = (rotate(t, c["rope_theta"], part, c.get("rope_scaling")) for t in (q, k))
        k, v = (np.repeat(t, heads // kv_heads, axis=1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        scores += np.triu(np.full((n, n), -np.inf), 1)
        if windowed:
            scores += np.tril(np.full((n, n), -np.inf), -c["sliding_window"])
        if self.gpt_oss:  # a score more, which has no value
            sinks = np.broadcast_to(self.w[f"{p}.sinks"][:, None, None], (heads, n, 1))
            share = softmax(np.concatenate([scores, sinks], -1))[..., :-1]
        else:
            share = softmax(scores)
        mixed = np.einsum("hqk,khd->qhd", share, v).reshape(n, -1)
        if f"{p}.gate_proj.weight" in self.w:
            mixed = mixed * sigmoid(x @ self.w[f"{p}.gate_proj.weight"].T)
        mixed = mixed @ self.w[f"{p}.o_proj.weight"].T
        return mixed + self.w[f"{p}.o_proj.bias"] if self.gpt_oss else mixed

    def attention_llama4(self, x, p, layer):
        c = self.config
        n, dim = x.shape[0], c["head_dim"]
        q, k, v = (
            (x @ self.w[f"{p}.{name}_proj.weight"].T).reshape(n, -1, dim) for name in "qkv"
        )
        pos = np.arange(n)
        if c["no_rope_layers"][layer]:
            q, k = rotate_llama4(q, c), rotate_llama4(k, c)
            if c["use_qk_norm"]:
                q, k = (rms_norm(t, 1.0, c["rms_norm_eps"]) for t in (q, k))
        elif c["attn_temperature_tuning"]:
            grown = np.log1p((pos + 1) // c["floor_scale"]) * c["attn_scale"] + 1
            q = q * grown[:, None, None]
        k, v = (np.repeat(t, q.shape[1] // k.shape[1], axis=1) for t in (k, v))
        hidden = pos[None, :] > pos[:, None]
        if c["layer_types"][layer] == "chunked_attention":
            chunk = pos // c["attention_chunk_size"]
            hidden |= chunk[None, :] != chunk[:, None]
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        mixed = np.einsum("hqk,khd->qhd", softmax(np.where(hidden, -np.inf, scores)), v)
        return mixed.reshape(n, -1) @ self.w[f"{p}.o_proj.weight"].T

    def experts_llama4(self, x, p):
        """The gate is a sigmoid and weighs what the expert receives."""
        top_k = self.config["num_experts_per_tok"]
        scores = 1 / (1 + np.exp(-(x @ self.w[f"{p}.router.weight"].T)))
        self.note_margin(scores, top_k)
        chosen = np.argsort(-scores, axis=-1, kind="stable")[:, :top_k]
        names = ("gate_proj", "up_proj", "down_proj")
        y = swiglu(x, *(self.w[f"{p}.shared_expert.{n}.weight"] for n in names))
        for e in range(scores.shape[-1]):
            rows = np.nonzero((chosen == e).any(-1))[0]
            both = self.w[f"{p}.experts.gate_up_proj"][e].T
            gate, up = np.split(both, 2)
            down = self.w[f"{p}.experts.down_proj"][e].T
            y[rows] += swiglu(x[rows] * scores[rows, e][:, None], gate, up, down)
        return y

    def note_margin(self, rank, k):
        ranked = -np.sort(-rank, axis=-1)
        self.min_margin = min(self.min_margin, (ranked[:, k - 1] - ranked[:, k]).min())

    def grouped_scores(self, logits, p):
        """(scores that weigh, what the choice goes by): the best groups only, as noaux_tc."""
        c = self.config
        scores = 1 / (1 + np.exp(-logits))
        each = (scores + self.w[f"{p}.gate.e_score_correction_bias"]).reshape(len(scores), c["n_group"], -1)
        groups = np.sort(each, -1)[..., -2:].sum(-1)
        if c["topk_group"] < c["n_group"]:
            self.note_margin(groups, c["topk_group"])
        kept = np.argsort(-groups, axis=-1, kind="stable")[:, : c["topk_group"]]
        mask = np.zeros_like(groups)
        np.put_along_axis(mask, kept, 1, -1)
        return scores, np.where(mask[..., None] > 0, each, -np.inf).reshape(scores.shape)

    def limited_scores(self, logits):
        """As DeepSeek-V2: probabilities, the choice among the groups of the best experts."""
        c, scores = self.config, softmax(logits)
        if c["topk_method"] == "greedy":
            return scores, scores
        each = scores.reshape(len(scores), c["n_group"], -1)
        groups = each.max(-1)
        if c["topk_group"] < c["n_group"]:
            self.note_margin(groups, c["topk_group"])
        kept = np.argsort(-groups, axis=-1, kind="stable")[:, : c["topk_group"]]
        mask = np.zeros_like(groups)
        np.put_along_axis(mask, kept, 1, -1)
        return scores, np.where(mask[..., None] > 0, each, -np.inf).reshape(scores.shape)
    def gpt_oss_experts(self, x, p):
        top_k = self.config["num_experts_per_tok"]
        logits = x @ self.w[f"{p}.router.weight"].T + self.w[f"{p}.router.bias"]
        self.note_margin(softmax(logits), top_k)
        order = np.argsort(-logits, axis=-1, kind="stable")[:, :top_k]
        weights = softmax(np.take_along_axis(logits, order, -1))
        parts = [self.w[f"{p}.experts.{n}"] for n in ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")]
        y = np.zeros_like(x)
        for e in range(logits.shape[-1]):
            rows, place = np.nonzero(order == e)
            both = x[rows] @ parts[0][e] + parts[1][e]
            gate, up = np.minimum(both[:, ::2], 7), np.clip(both[:, 1::2], -7, 7)
            mid = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
            y[rows] += weights[rows, place][:, None] * (mid @ parts[2][e] + parts[3][e])
        return y

    def experts(self, x, p):
        if self.gpt_oss:
            return self.gpt_oss_experts(x, p)
        names = ("w1", "w3", "w2") if self.mixtral else ("gate_proj", "up_proj", "down_proj")
        top_k = self.config["num_experts_per_tok"]
        logits = x @ self.w[f"{p}.gate.weight"].T
        if self.config["model_type"] == "deepseek_v2":
            probs, rank = self.limited_scores(logits)
        else:
            probs, rank = self.grouped_scores(logits, p) if self.glm else (softmax(logits),) * 2
        self.note_margin(rank, top_k)
        order = np.argsort(-rank, axis=-1, kind="stable")
        weights = np.take_along_axis(probs, order[:, :top_k], -1)
        if self.mixtral or self.config["norm_topk_prob"]:
            weights = weights / weights.sum(-1, keepdims=True)
        weights = weights * self.config.get("routed_scaling_factor", 1.0)
        y = np.zeros_like(x)
        for e in range(probs.shape[-1]):
            rows, place = np.nonzero(order[:, :top_k] == e)
            parts = (self.w[f"{p}.experts.{e}.{name}.weight"] for name in names)
            y[rows] += weights[rows, place][:, None] * swiglu(x[rows], *parts)
        shared = self.qwen2 or self.qwen3_next or self.glm or self.deepseek
        return y + self.shared_expert(x, p) if shared else y

    def shared_expert(self, x, p):
        if not (self.qwen2 or self.qwen3_next):
            parts = (self.w[f"{p}.shared_experts.{n}_proj.weight"] for n in ("gate", "up", "down"))
            return swiglu(x, *parts)
        gate = 1 / (1 + np.exp(-(x @ self.w[f"{p}.shared_expert_gate.weight"].T)))
        parts = (self.w[f"{p}.shared_expert.{n}_proj.weight"] for n in ("gate", "up", "down"))
        return gate * swiglu(x, *parts)

    def is_sparse(self, layer):
        if self.mixtral or self.olmoe or self.gpt_oss:
            return True
        c = self.config
        if self.llama4:
            return layer in c["moe_layers"]
        if self.glm or self.deepseek:
            return layer >= c["first_k_dense_replace"]
        return layer not in c["mlp_only_layers"] and (layer + 1) % c["decoder_sparse_step"] == 0

    def forward(self, ids):
        eps = self.config["rms_norm_eps"]
        x = self.w["model.embed_tokens.weight"][np.asarray(ids)]
        for i in range(self.config["num_hidden_layers"]):
            p = f"model.layers.{i}"
            normed = rms_norm(x, self.w[f"{p}.input_layernorm.weight"], eps)
            if self.llama4:
                x = x + self.attention_llama4(normed, f"{p}.self_attn", i)
            else:
                windowed = self.gpt_oss and self.config["layer_types"][i] == "sliding_attention"
                x = x + self.attention(normed, f"{p}.self_attn", windowed)
            normed = rms_norm(x, self.w[f"{p}.post_attention_layernorm.weight"], eps)
            mlp = f"{p}.{'feed_forward' if self.llama4 else 'mlp'}"
            if self.llama4 and self.is_sparse(i):
                x = x + self.experts_llama4(normed, mlp)
            elif self.is_sparse(i):
                x = x + self.experts(normed, f"{p}.{'block_sparse_moe' if self.mixtral else 'mlp'}")
            else:
                parts = (self.w[f"{mlp}.{n}_proj.weight"] for n in ("gate", "up", "down"))
                x = x + swiglu(normed, *parts)
        x = rms_norm(x, self.w["model.norm.weight"], eps)
        tied = self.config["tie_word_embeddings"]
        return x @ self.w["model.embed_tokens.weight" if tied else "lm_head.weight"].T


class Dbrx:
    """The same of DBRX (its model card and tensors): fused matrices, LayerNorm, values clipped."""

    def __init__(self, folder):
        self.config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        self.w = load_weights(folder)
        self.min_margin = 1.0

    def attention(self, x, p):
        c = self.config["attn_config"]
        n, heads, dim = x.shape[0], self.config["n_heads"], x.shape[1] // self.config["n_heads"]
        fused = (x @ self.w[f"{p}.Wqkv.weight"].T).reshape(n, -1, dim)
        if c["clip_qkv"]:
            fused = np.clip(fused, -c["clip_qkv"], c["clip_qkv"])
        q, k, v = np.split(fused, [heads, heads + c["kv_n_heads"]], axis=1)
        q, k = (rotate(t, c["rope_theta"]) for t in (q, k))
        k, v = (np.repeat(t, heads // c["kv_n_heads"], axis=1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim) + np.triu(np.full((n, n), -np.inf), 1)
        mixed = np.einsum("hqk,khd->qhd", softmax(scores), v)
        return mixed.reshape(n, -1) @ self.w[f"{p}.out_proj.weight"].T

    def experts(self, x, p):
        c = self.config["ffn_config"]
        w1, v1, w2 = (
            self.w[f"{p}.experts.mlp.{name}"].reshape(c["moe_num_experts"], c["ffn_hidden_size"], -1)
            for name in ("w1", "v1", "w2")
        )
        probs = softmax(x @ self.w[f"{p}.router.layer.weight"].T)
        order = np.argsort(-probs, axis=-1, kind="stable")
        ranked = np.take_along_axis(probs, order, -1)
        self.min_margin = min(self.min_margin, (ranked[:, c["moe_top_k"] - 1] - ranked[:, c["moe_top_k"]]).min())
        weights = ranked[:, : c["moe_top_k"]]
        if c["moe_normalize_expert_weights"]:
            weights = weights / weights.sum(-1, keepdims=True)
        y = np.zeros_like(x)
        for row in range(len(x)):
            for weight, e in zip(weights[row], order[row]):
                y[row] += weight * swiglu(x[row], w1[e], v1[e], w2[e].T)
        return y

    def forward(self, ids):
        x = self.w["transformer.wte.weight"][np.asarray(ids)]
        for i in range(self.config["n_layers"]):
            p = f"transformer.blocks.{i}"
            normed = layer_norm(x, self.w[f"{p}.norm_attn_norm.norm_1.weight"])
            x = x + self.attention(normed, f"{p}.norm_attn_norm.attn")
            normed = layer_norm(x, self.w[f"{p}.norm_attn_norm.norm_2.weight"])
            x = x + self.experts(normed, f"{p}.ffn")
        return layer_norm(x, self.w["transformer.norm_f.weight"]) @ self.w["lm_head.weight"].T


class Arctic(Model):
    """Mixtral's parts; experts read what their block was given, a dense branch stands beside them."""

    def __init__(self, folder):
        super().__init__(folder)
        self.mixtral = True

    def ffn(self, x, p):
        return swiglu(x, *(self.w[f"{p}.{n}.weight"] for n in ("w1", "w3", "w2")))

    def forward(self, ids):
        c, eps = self.config, self.config["rms_norm_eps"]
        x = self.w["model.embed_tokens.weight"][np.asarray(ids)]
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}"
            given = x
            x = x + self.attention(rms_norm(x, self.w[f"{p}.input_layernorm.weight"], eps), f"{p}.self_attn")
            second = self.w[f"{p}.post_attention_layernorm.weight"]
            if (i + 1) % c["moe_layer_frequency"] != 0:
                x = x + self.ffn(rms_norm(x, second, eps), f"{p}.block_sparse_moe.mlp")
                continue
            branch = self.ffn(rms_norm(x, self.w[f"{p}.residual_layernorm.weight"], eps), f"{p}.residual_mlp")
            x = x + branch + self.experts(rms_norm(given, second, eps), f"{p}.block_sparse_moe")
        return rms_norm(x, self.w["model.norm.weight"], eps) @ self.w["lm_head.weight"].T


class Qwen3Next(Model):
    """Gated DeltaNet (arXiv:2412.06464) in most blocks, gated attention in the others; norms are stored less 1."""

    def __init__(self, folder):
        super().__init__(folder)
        for name in [n for n in self.w if "norm" in n and "linear_attn" not in n]:
            self.w[name] += 1
        dim = self.config["head_dim"]
        for name in [n for n in self.w if n.endswith("q_proj.weight")]:  # of each head its query, then its gate
            each = self.w[name].reshape(-1, 2, dim, self.config["hidden_size"])
            self.w[name] = each[:, 0].reshape(-1, each.shape[-1])
            self.w[name.replace("q_proj", "gate_proj")] = each[:, 1].reshape(-1, each.shape[-1])

    def attention(self, x, p, windowed=False):
        interval, layer = self.config["full_attention_interval"], int(p.split(".")[2])
        if (layer + 1) % interval == 0:
            return super().attention(x, p)
        return self.delta_net(x, p.replace("self_attn", "linear_attn"))

    def heads(self, x, p):
        """(q, k, v, z) [positions, heads, dim], before the convolution, and (b, a) [positions, value heads]: in the
        file one key head after the other, each with what its value heads have."""
        c, n = self.config, x.shape[0]
        k_heads, v_heads, k_dim = c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_key_head_dim"]
        wide = v_heads // k_heads * c["linear_value_head_dim"]
        rows = (x @ self.w[f"{p}.in_proj_qkvz.weight"].T).reshape(n, k_heads, -1)
        parts = np.split(rows, [k_dim, 2 * k_dim, 2 * k_dim + wide], -1)
        gates = np.split((x @ self.w[f"{p}.in_proj_ba.weight"].T).reshape(n, k_heads, -1), 2, -1)
        return parts, [t.reshape(n, v_heads) for t in gates]

    def delta_net(self, x, p):
        c, n = self.config, x.shape[0]
        k_heads, v_heads, k_dim = c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_key_head_dim"]
        (*qkv, z), (b, a) = self.heads(x, p)
        rows = np.concatenate([t.reshape(n, -1) for t in qkv], -1)
        taps = self.w[f"{p}.conv1d.weight"][:, 0]
        padded = np.pad(rows, ((taps.shape[1] - 1, 0), (0, 0)))
        rows = silu(sum(padded[j : j + n] * taps[:, j] for j in range(taps.shape[1])))
        q, k, v = np.split(rows, [k_heads * k_dim, 2 * k_heads * k_dim], -1)
        q, k = (t.reshape(n, k_heads, k_dim) for t in (q, k))
        q, k = (t / np.sqrt((t * t).sum(-1, keepdims=True) + 1e-6) for t in (q, k))
        q, k = (np.repeat(t, v_heads // k_heads, 1) for t in (q / np.sqrt(k_dim), k))
        v, z = (t.reshape(n, v_heads, -1) for t in (v, z))
        decay = np.exp(-np.exp(self.w[f"{p}.A_log"]) * np.logaddexp(0, a + self.w[f"{p}.dt_bias"]))
        beta, y = sigmoid(b), np.zeros_like(v)
        state = np.zeros((v_heads, k_dim, v.shape[-1]))
        for t in range(n):
            state *= decay[t, :, None, None]
            wrong = beta[t, :, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state += k[t, :, :, None] * wrong[:, None]
            y[t] = np.einsum("hkv,hk->hv", state, q[t])
        y = rms_norm(y, self.w[f"{p}.norm.weight"], c["rms_norm_eps"]) * silu(z)
        return y.reshape(n, -1) @ self.w[f"{p}.out_proj.weight"].T


def model_of(folder):
    kind = json.loads((pathlib.Path(folder) / "config.json").read_text())["model_type"]
    return {"arctic": Arctic, "dbrx": Dbrx, "qwen3_next": Qwen3Next}.get(kind, Model)(folder)


def main():
    folder = pathlib.Path(sys.argv[1])
    golden = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    for case in golden["cases"]:
        model = model_of(folder)
        ref = np.load(folder / case["logits"])
        got = model.forward(case["prompt_ids"] + case["greedy_ids"])
        worst = (abs(got - ref).max(-1) / abs(ref).max(-1)).max()
        print(
            f"{folder.name} {case['name']}: {worst:.2e}, router margin {model.min_margin:.1e} "
            f"(golden {case['min_router_margin']:.1e})"
        )


if __name__ == "__main__":
    main()
