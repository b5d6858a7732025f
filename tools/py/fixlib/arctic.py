"""Snowflake Arctic, which transformers does not ship: its blocks built from the parts of Mixtral.

A routed block (every moe_layer_frequency-th) has a dense branch beside its experts, and these read what the
block was given, before attention (the model's own description: "dense-MoE hybrid"):

    a = x + Attention(input_norm(x))
    y = a + W2 (silu(W1 h) * W3 h) + MoE(post_attention_norm(x)),  h = residual_norm(a)

Attention, norms, rotation, router and experts are Mixtral's as transformers computes them; what is
written here is the block, and the reading of its configuration.
"""

import copy

import torch
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral import modeling_mixtral as mixtral

DEFAULTS = {"moe_layer_frequency": 2, "parallel_attn_mlp_res": False}


class ArcticConfig(MixtralConfig):
    model_type = "arctic"

    def __init__(self, **kw):
        for key, value in DEFAULTS.items():
            setattr(self, key, kw.pop(key, value))
        super().__init__(**kw)


def is_routed(config, layer):
    return (layer + 1) % config.moe_layer_frequency == 0


class DenseFfn(torch.nn.Module):
    """Gives (y, None), as a routed feed-forward does."""

    def __init__(self, config):
        super().__init__()
        self.mlp = mixtral.MixtralBlockSparseTop2MLP(config)

    def forward(self, x):
        return self.mlp(x), None


class ArcticDecoderLayer(mixtral.MixtralDecoderLayer):
    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.branched = config.parallel_attn_mlp_res and is_routed(config, layer)
        if not is_routed(config, layer):
            self.block_sparse_moe = DenseFfn(config)
        if self.branched:
            square = copy.copy(config)
            square.intermediate_size = config.hidden_size
            self.residual_layernorm = mixtral.MixtralRMSNorm(config.hidden_size, config.rms_norm_eps)
            self.residual_mlp = mixtral.MixtralBlockSparseTop2MLP(square)

    def forward(self, hidden_states, **kw):
        attention, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kw)
        stream = hidden_states + attention
        source = hidden_states if self.branched else stream
        routed, _ = self.block_sparse_moe(self.post_attention_layernorm(source))
        if self.branched:
            stream = stream + self.residual_mlp(self.residual_layernorm(stream))
        return stream + routed


class ArcticForCausalLM(MixtralForCausalLM):
    config_class = ArcticConfig

    def __init__(self, config):
        super().__init__(config)
        self.model.layers = torch.nn.ModuleList(
            ArcticDecoderLayer(config, i) for i in range(config.num_hidden_layers)
        )
        self.post_init()


def config(context, tokens):
    return ArcticConfig(
        vocab_size=tokens,
        hidden_size=56,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        hidden_act="silu",
        max_position_embeddings=context,
        moe_layer_frequency=2,
        parallel_attn_mlp_res=True,
        num_local_experts=12,
        num_experts_per_tok=2,
        router_aux_loss_coef=0.001,
        tie_word_embeddings=False,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        sliding_window=None,
        bos_token_id=1,
        eos_token_id=2,
    )


# What published files hold besides.
STORED_CONFIG = {
    "enable_expert_tensor_parallelism": False,
    "head_dim": None,
    "moe_eval_capacity_factor": 1,
    "moe_min_capacity": 0,
    "moe_token_dropping": True,
    "moe_train_capacity_factor": 1,
    "quantization": None,
    "router_jitter_noise": None,
    "use_residual": True,
}


def expected_names(config):
    names = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    for i in range(config.num_hidden_layers):
        p = f"model.layers.{i}"
        names |= {f"{p}.self_attn.{x}_proj.weight" for x in "qkvo"}
        names |= {f"{p}.{x}_layernorm.weight" for x in ("input", "post_attention")}
        if not is_routed(config, i):
            names |= {f"{p}.block_sparse_moe.mlp.{x}.weight" for x in ("w1", "w2", "w3")}
            continue
        names |= {f"{p}.residual_layernorm.weight", f"{p}.block_sparse_moe.gate.weight"}
        names |= {f"{p}.residual_mlp.{x}.weight" for x in ("w1", "w2", "w3")}
        names |= {
            f"{p}.block_sparse_moe.experts.{e}.{x}.weight"
            for e in range(config.num_local_experts)
            for x in ("w1", "w2", "w3")
        }
    return names
