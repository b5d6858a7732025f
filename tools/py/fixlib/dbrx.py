"""The DBRX fixture: how its configuration and its tensors differ from those of the Llama line."""

from transformers import DbrxConfig

PREFIX = "transformer.blocks."


def config(context, tokens, pad, eos):
    """GQA over a head width that is no multiple of 16, clipping that cuts, weights of sum 1."""
    return DbrxConfig(
        d_model=56,
        n_heads=4,
        n_layers=3,
        max_seq_len=context,
        vocab_size=tokens,
        attn_config={"clip_qkv": 1.5, "kv_n_heads": 2, "rope_theta": 500000},
        ffn_config={
            "ffn_hidden_size": 24,
            "moe_num_experts": 8,
            "moe_top_k": 3,
            "moe_jitter_eps": 0,
            "moe_loss_weight": 0.05,
            "moe_normalize_expert_weights": 1,
        },
        router_aux_loss_coef=0.05,
        pad_token_id=pad,
        eos_token_id=eos,
    )


def expected_names(config):
    names = {"transformer.wte.weight", "transformer.norm_f.weight", "lm_head.weight"}
    for i in range(config.n_layers):
        p = f"{PREFIX}{i}"
        names |= {f"{p}.norm_attn_norm.{x}.weight" for x in ("norm_1", "norm_2")}
        names |= {f"{p}.norm_attn_norm.attn.{x}.weight" for x in ("Wqkv", "out_proj")}
        names.add(f"{p}.ffn.router.layer.weight")
        names |= {f"{p}.ffn.experts.mlp.{x}" for x in ("w1", "v1", "w2")}
    return names


def exchange(model, layer, a, b):
    """Two experts of one layer: rows of the three stacked matrices."""
    width = model.config.ffn_config.ffn_hidden_size
    mlp = model.transformer.blocks[layer].ffn.experts.mlp
    for stacked in (mlp.w1, mlp.v1, mlp.w2):
        first, second = (stacked.data[e * width : (e + 1) * width] for e in (a, b))
        kept = first.clone()
        first.copy_(second)
        second.copy_(kept)
