"""What gguf_make.py writes for the families whose files differ from those of the Llama line: tensors and keys of olmoe,
glm4moe, gpt-oss, deepseek2, dbrx, arctic and qwen3next, from a checkpoint folder. Nothing here shares code with Sluice.
"""

import re

import numpy as np

CLASSES = {
    "OlmoeForCausalLM": "olmoe",
    "Glm4MoeForCausalLM": "glm4moe",
    "GptOssForCausalLM": "gpt-oss",
    "DeepseekV2ForCausalLM": "deepseek2",
    "DeepseekV3ForCausalLM": "deepseek2",
    "DbrxForCausalLM": "dbrx",
    "ArcticForCausalLM": "arctic",
    "Qwen3NextForCausalLM": "qwen3next",
}
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight", "transformer.wte.weight": "token_embd.weight",
    "transformer.norm_f.weight": "output_norm.weight",
}  # fmt: skip
USUAL = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
POST = {"post_attention_layernorm.weight": "post_attention_norm.weight"}
FFN = {"post_attention_layernorm.weight": "ffn_norm.weight"}
NEXTN = {  # of a block behind the last
    "eh_proj.weight": "nextn.eh_proj.weight", "enorm.weight": "nextn.enorm.weight",
    "hnorm.weight": "nextn.hnorm.weight", "shared_head.norm.weight": "nextn.shared_head_norm.weight",
}  # fmt: skip
QWEN_NEXTN = {  # what NEXTN has under other names
    "fc.weight": "eh_proj.weight", "pre_fc_norm_embedding.weight": "enorm.weight",
    "pre_fc_norm_hidden.weight": "hnorm.weight", "norm.weight": "shared_head.norm.weight",
}  # fmt: skip
OWN = {
    "olmoe": FFN,
    "glm4moe": POST | NEXTN,
    "gpt-oss": POST | {"self_attn.sinks": "attn_sinks.weight", "mlp.router": "ffn_gate_inp"},
    "deepseek2": FFN | NEXTN | {
        "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
        "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
        "self_attn.kv_b_proj": "attn_kv_b",
    },
    "dbrx": {
        "norm_attn_norm.norm_1.weight": "attn_norm.weight", "norm_attn_norm.norm_2.weight": "attn_output_norm.weight",
        "norm_attn_norm.attn.Wqkv.weight": "attn_qkv.weight", "norm_attn_norm.attn.out_proj": "attn_output",
        "ffn.router.layer": "ffn_gate_inp",
    },
    "arctic": {"block_sparse_moe.gate.weight": "ffn_gate_inp.weight"},
    "qwen3next": POST | NEXTN | {
        "linear_attn.in_proj_qkvz": "ssm_in", "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.conv1d": "ssm_conv1d",
        "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.A_log": "ssm_a", "linear_attn.norm": "ssm_norm",
        "linear_attn.out_proj": "ssm_out",
    },
}  # fmt: skip
CODES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], "<f4")


def f8_values():
    """All 256 codes of F8_E4M3."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    value = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7))
    return np.where(code & 128, -value, value).astype("<f4")


def widen(tensors):
    """Plain f32 of what {name: array} holds in F8_E4M3 (u8 here) with scales, and in MXFP4."""
    out = {}
    for name, w in tensors.items():
        if name.endswith(("_scale_inv", "_scales")):
            continue
        if name + "_scale_inv" in tensors:
            scale = tensors[name + "_scale_inv"].repeat(128, 0).repeat(128, 1)[: w.shape[0], : w.shape[1]]
            w = f8_values()[w] * scale
        if name.endswith("_blocks"):
            name = name[: -len("_blocks")]
            pair = np.stack([w & 15, w >> 4], -1).reshape(*w.shape[:-1], 32)
            values = np.where(pair & 8, -CODES[pair & 7], CODES[pair & 7])
            scale = np.ldexp(np.float32(1), tensors[name + "_scales"].astype(int) - 127)
            rows = (values * scale[..., None]).astype("<f4").reshape(*w.shape[:2], -1)
            w = rows.swapaxes(1, 2)  # as the plain tensor lies: inputs first
        out[name] = w
    return out


def paired(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(w.shape)


def latent_parts(w, c):
    heads, nope = c["num_attention_heads"], c["qk_nope_head_dim"]
    w = w.reshape(heads, nope + c["v_head_dim"], -1)
    return {"attn_k_b.weight": w[:, :nope].swapaxes(1, 2), "attn_v_b.weight": w[:, nope:]}


def delta_parts(w, c):
    """Rows by key heads become queries of all heads, keys, values; and gates apart."""
    keys, dim = c["linear_num_key_heads"], c["linear_key_head_dim"]
    values = c["linear_num_value_heads"] // keys * c["linear_value_head_dim"]
    parts = np.split(w.reshape(keys, 2 * (dim + values), -1), np.cumsum([dim, dim, values]), axis=1)
    q, k, v, gate = (p.reshape(-1, w.shape[1]) for p in parts)
    return {"attn_qkv.weight": np.concatenate([q, k, v]), "attn_gate.weight": gate}


def delta_value(rest, w):
    """What files of qwen3next hold in the place of a checkpoint's values."""
    if rest.endswith("norm.weight") and rest != "linear_attn.norm.weight":
        return w + np.float32(1)
    if rest == "linear_attn.A_log":
        return -np.exp(w)
    return w.squeeze() if rest == "linear_attn.conv1d.weight" else w


def arctic_names(rest, routed):
    if routed:
        table = {"residual_layernorm.weight": "ffn_norm.weight", "residual_mlp.w1": "ffn_gate",
                 "residual_mlp.w3": "ffn_up", "residual_mlp.w2": "ffn_down",
                 "post_attention_layernorm.weight": "ffn_norm_exps.weight"}
    else:
        table = FFN | {"block_sparse_moe.mlp.w1": "ffn_gate", "block_sparse_moe.mlp.w3": "ffn_up",
                       "block_sparse_moe.mlp.w2": "ffn_down"}
    return table.get(rest) or (table[rest[:-7]] + ".weight" if rest[:-7] in table else None)


def name_of(arch, rest, routed):
    if arch == "arctic" and (name := arctic_names(rest, routed)):
        return name
    for table in (OWN[arch], USUAL):
        if rest in table:
            return table[rest]
        stem, _, tail = rest.rpartition(".")
        if stem in table:
            return f"{table[stem]}.{tail}"
    raise KeyError(f"{arch}: {rest}")


def experts_of(arch, rest, w, c):
    """[(name, stacked experts)] of a tensor that holds all of a block."""
    if arch == "dbrx" and (m := re.fullmatch(r"ffn\.experts\.mlp\.(w1|v1|w2)", rest)):
        w = w.reshape(c["ffn_config"]["moe_num_experts"], -1, w.shape[-1])
        part = {"w1": "gate", "v1": "up", "w2": "down"}[m[1]]
        return [(f"ffn_{part}_exps.weight", w.swapaxes(1, 2) if part == "down" else w)]
    if arch != "gpt-oss" or not rest.startswith("mlp.experts."):
        return []
    part, bias = re.fullmatch(r"mlp\.experts\.(gate_up|down)_proj(_bias)?", rest).groups()
    w, tail = (w, "bias") if bias else (w.swapaxes(1, 2), "weight")
    if part == "down":
        return [(f"ffn_down_exps.{tail}", w)]
    return [(f"ffn_gate_exps.{tail}", w[:, ::2]), (f"ffn_up_exps.{tail}", w[:, 1::2])]


def tensors_of(arch, tensors, c, whole_latents=False, further=False, whole_delta=False):
    """{GGUF name: float32 array}. whole_latents: attn_kv_b as it is; further: blocks behind the last, too; whole_delta: ssm_in."""
    tensors = widen(tensors)
    out, stacks = {}, {}
    layers = c.get("num_hidden_layers") or c["n_layers"]
    routed = {m[1] for n in tensors if (m := re.match(r"model\.layers\.(\d+)\.block_sparse_moe\.gate\.", n))}
    for name, w in tensors.items():
        if arch == "qwen3next":
            if name.startswith("mtp."):
                rest = name[len("mtp.") :].removeprefix("layers.0.")
                name = f"model.layers.{layers}.{QWEN_NEXTN.get(rest, rest)}"
            w = delta_value(name.partition(".layers.")[2].partition(".")[2] or name, w)
        if name in WHOLE:
            out[WHOLE[name]] = w
            continue
        layer, rest = re.fullmatch(r"(?:model\.layers|transformer\.blocks)\.(\d+)\.(.*)", name).groups()
        if int(layer) >= layers and not further:
            continue
        if m := re.fullmatch(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight", rest):
            part = {"w1": "gate", "w3": "up", "w2": "down"}.get(m[2]) or m[2].removesuffix("_proj")
            stacks.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", {})[int(m[1])] = w
            continue
        if stacked := experts_of(arch, rest, w, c):
            out |= {f"blk.{layer}.{n}": v for n, v in stacked}
            continue
        if rest == "self_attn.kv_b_proj.weight" and not whole_latents:
            out |= {f"blk.{layer}.{n}": v for n, v in latent_parts(w, c).items()}
            continue
        if rest == "linear_attn.in_proj_qkvz.weight" and not whole_delta:
            out |= {f"blk.{layer}.{n}": v for n, v in delta_parts(w, c).items()}
            continue
        if arch == "arctic" and rest in ("self_attn.q_proj.weight", "self_attn.k_proj.weight"):
            w = paired(w, c["num_attention_heads" if rest[10] == "q" else "num_key_value_heads"])
        out[f"blk.{layer}.{name_of(arch, rest, layer in routed)}"] = w
    return out | {name: np.stack([e[i] for i in range(len(e))]) for name, e in stacks.items()}


# ---- keys ----


def add_rope(w, arch, c, y):
    w.add_string(f"{arch}.rope.scaling.type", "yarn")
    w.add_rope_scaling_factor(y["factor"])
    w.add_rope_scaling_orig_ctx_len(y["original_max_position_embeddings"])
    w.add_float32(f"{arch}.rope.scaling.yarn_beta_fast", y["beta_fast"])
    w.add_float32(f"{arch}.rope.scaling.yarn_beta_slow", y["beta_slow"])
    if y.get("mscale_all_dim") is not None:
        w.add_float32(f"{arch}.rope.scaling.yarn_log_multiplier", 0.1 * y["mscale_all_dim"])


def add_latents(w, c, whole):
    heads, rope, lora = c["num_attention_heads"], c["qk_rope_head_dim"], c["kv_lora_rank"]
    w.add_head_count_kv(heads if whole else 1)
    w.add_kv_lora_rank(lora)
    if c.get("q_lora_rank"):
        w.add_q_lora_rank(c["q_lora_rank"])
    w.add_key_length(c["qk_nope_head_dim"] + rope if whole else lora + rope)
    w.add_value_length(c["v_head_dim"] if whole else lora)
    w.add_rope_dimension_count(rope)
    if not whole:
        w.add_uint32("deepseek2.attention.key_length_mla", c["qk_nope_head_dim"] + rope)
        w.add_uint32("deepseek2.attention.value_length_mla", c["v_head_dim"])


def add_router(w, arch, c, further):
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(c["norm_topk_prob"])
    w.add_uint32(f"{arch}.expert_group_count", c["n_group"])
    w.add_uint32(f"{arch}.expert_group_used_count", c["topk_group"])
    w.add_uint32(f"{arch}.expert_gating_func", 1 if c.get("scoring_func") == "softmax" else 2)
    if further:
        w.add_uint32(f"{arch}.nextn_predict_layers", c["num_nextn_predict_layers"])


def add_linear(w, c, further):
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_state_size(c["linear_key_head_dim"])
    w.add_ssm_group_count(c["linear_num_key_heads"])
    w.add_ssm_time_step_rank(c["linear_num_value_heads"])
    w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
    w.add_full_attention_interval(c["full_attention_interval"])
    if c.get("layer_types"):
        linear = [t == "linear_attention" for t in c["layer_types"]]
        w.add_array("qwen3next.attention.recurrent_layers", linear + [False] * further)
    if further:
        w.add_uint32("qwen3next.nextn_predict_layers", 1)


def add_config(w, arch, c, whole_latents=False, further=False, whole_delta=False):
    if arch == "dbrx":
        a, f = c["attn_config"], c["ffn_config"]
        c = c | {"max_position_embeddings": c["max_seq_len"], "hidden_size": c["d_model"],
                 "num_hidden_layers": c["n_layers"], "num_attention_heads": c["n_heads"],
                 "num_key_value_heads": a["kv_n_heads"], "rope_theta": a["rope_theta"],
                 "intermediate_size": f["ffn_hidden_size"], "num_experts": f["moe_num_experts"],
                 "num_experts_per_tok": f["moe_top_k"]}
        w.add_layer_norm_eps(1e-5)
        w.add_clamp_kqv(a["clip_qkv"])
    else:
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"] + (c.get("num_nextn_predict_layers", 1) if further else 0))
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_rope_freq_base(c["rope_theta"])
    w.add_expert_count(c.get("num_experts") or c.get("num_local_experts") or c["n_routed_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    if arch in ("glm4moe", "deepseek2"):
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        add_router(w, arch, c, further)
    if arch == "gpt-oss":
        w.add_expert_feed_forward_length(c["intermediate_size"])
        w.add_sliding_window(c["sliding_window"])
    if arch == "deepseek2":
        add_latents(w, c, whole_latents)
    else:
        w.add_head_count_kv(c["num_key_value_heads"])
    if c.get("head_dim"):
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    if arch == "qwen3next":
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
        add_linear(w, c, further)
    if arch in ("glm4moe", "qwen3next"):
        w.add_rope_dimension_count(int(c["head_dim"] * c["partial_rotary_factor"]))
    if c.get("rope_scaling"):
        add_rope(w, arch, c, c["rope_scaling"])
