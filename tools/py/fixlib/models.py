"""The tiny architectures, their configurations and how they are stored.

Shapes are chosen so that head_dim differs from hidden/heads, query heads share key/value heads,
dense and sparse layers mix, and (in qwen3moe-sparse) no width is a multiple of 16.
"""

import dataclasses
import json
import re

import torch
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

CONTEXT = 512
CLASSES = {
    "mixtral": MixtralForCausalLM,
    "qwen2_moe": Qwen2MoeForCausalLM,
    "qwen3_moe": Qwen3MoeForCausalLM,
}


@dataclasses.dataclass
class Fixture:
    name: str
    kind: str  # tokenizer shape: qwen or smollm
    tokens: int  # entries of the tokenizer
    config: object
    stored: torch.dtype
    shard_bytes: int
    chat: bool
    dtype_key: str  # config.json spells the stored type torch_dtype, or dtype since 4.56
    seed: int
    steps: int
    stored_config: dict = dataclasses.field(default_factory=dict)  # keys that transformers drops


def qwen_special(size):
    """Ids of <|endoftext|> and <|im_end|> in a qwen tokenizer of `size` entries."""
    return size - 5, size - 3


def qwen_config(tokens, **kw):
    end, im_end = qwen_special(tokens)
    return Qwen3MoeConfig(
        num_hidden_layers=4,
        hidden_act="silu",
        max_position_embeddings=CONTEXT,
        attention_bias=False,
        use_sliding_window=False,
        sliding_window=None,
        router_aux_loss_coef=0.01,
        bos_token_id=end,
        eos_token_id=im_end,
        **kw,
    )


def fixtures():
    tiny = qwen_config(
        1024,
        vocab_size=1040,  # padded beyond the tokenizer, as published checkpoints are
        hidden_size=64,
        intermediate_size=160,
        moe_intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[0],
        tie_word_embeddings=True,
        rope_theta=1000000.0,
        rms_norm_eps=1e-6,
    )
    mixtral = MixtralConfig(
        vocab_size=1024,
        hidden_size=64,
        intermediate_size=80,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        hidden_act="silu",
        max_position_embeddings=CONTEXT,
        num_local_experts=8,
        num_experts_per_tok=2,
        router_aux_loss_coef=0.01,
        tie_word_embeddings=False,
        rope_theta=100000.0,
        rms_norm_eps=1e-5,
        sliding_window=None,
        bos_token_id=1,
        eos_token_id=2,
    )
    sparse = qwen_config(
        1009,
        vocab_size=1009,
        hidden_size=72,
        intermediate_size=104,
        moe_intermediate_size=40,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=20,
        num_experts=16,
        num_experts_per_tok=4,
        norm_topk_prob=False,
        decoder_sparse_step=2,
        mlp_only_layers=[],
        tie_word_embeddings=False,
        rope_theta=10000.0,
        rms_norm_eps=1e-6,
    )
    end, im_end = qwen_special(1000)
    shared = Qwen2MoeConfig(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=104,
        moe_intermediate_size=40,
        shared_expert_intermediate_size=88,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        hidden_act="silu",
        max_position_embeddings=CONTEXT,
        num_experts=8,
        num_experts_per_tok=3,
        norm_topk_prob=False,
        decoder_sparse_step=1,
        mlp_only_layers=[1],
        qkv_bias=True,
        use_sliding_window=False,
        router_aux_loss_coef=0.01,
        tie_word_embeddings=False,
        rope_theta=1000000.0,
        rms_norm_eps=1e-6,
        bos_token_id=end,
        eos_token_id=im_end,
    )
    big = 1 << 30
    return {
        f.name: f
        for f in (
            Fixture(
                "qwen3moe-tiny",
                "qwen",
                1024,
                tiny,
                torch.bfloat16,
                big,
                True,
                "torch_dtype",
                11,
                900,
            ),
            Fixture(
                "mixtral-tiny",
                "smollm",
                1024,
                mixtral,
                torch.float32,
                1400000,
                True,
                "torch_dtype",
                12,
                900,
            ),
            Fixture(
                "qwen3moe-sparse", "qwen", 1009, sparse, torch.float16, big, False, "dtype", 13, 900
            ),
            Fixture(
                "qwen2moe-tiny",
                "qwen",
                1000,
                shared,
                torch.bfloat16,
                big,
                True,
                "torch_dtype",
                14,
                900,
                # as published: a window that is not used, and no qkv_bias (it is always there)
                {"sliding_window": 48, "max_window_layers": 2, "qkv_bias": None},
            ),
        )
    }


def create(fixture):
    fixture.config._attn_implementation = "eager"
    model = CLASSES[fixture.config.model_type](fixture.config)
    for name, value in model.named_parameters():
        if name.endswith("_proj.bias"):  # zero at first; nothing would ever move those of the keys
            torch.nn.init.normal_(value, std=0.3)
    return model


def load(folder):
    """The stored weights, widened to f32."""
    cls = CLASSES[json.loads((folder / "config.json").read_text())["model_type"]]
    model, info = cls.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    bad = {k: v for k, v in info.items() if v}
    if bad:
        raise SystemExit(f"{folder}: does not load back: {bad}")
    return model.eval()


def sparse_layers(config):
    if config.model_type == "mixtral":
        return list(range(config.num_hidden_layers))
    return [
        i
        for i in range(config.num_hidden_layers)
        if i not in config.mlp_only_layers and (i + 1) % config.decoder_sparse_step == 0
    ]


def gate_of(model, layer):
    block = model.model.layers[layer]
    return (block.block_sparse_moe if hasattr(block, "block_sparse_moe") else block.mlp).gate


def expected_names(config):
    """Tensor names of a published checkpoint of this configuration."""
    names = {"model.embed_tokens.weight", "model.norm.weight"}
    if not config.tie_word_embeddings:
        names.add("lm_head.weight")
    mixtral = config.model_type == "mixtral"
    sparse = sparse_layers(config)
    for i in range(config.num_hidden_layers):
        p = f"model.layers.{i}"
        names |= {f"{p}.self_attn.{x}_proj.weight" for x in "qkvo"}
        names |= {f"{p}.{x}_layernorm.weight" for x in ("input", "post_attention")}
        if config.model_type == "qwen3_moe":
            names |= {f"{p}.self_attn.{x}_norm.weight" for x in "qk"}
        if config.model_type == "qwen2_moe":
            names |= {f"{p}.self_attn.{x}_proj.bias" for x in "qkv"}
        if i not in sparse:
            names |= {f"{p}.mlp.{x}_proj.weight" for x in ("gate", "up", "down")}
            continue
        block = "block_sparse_moe" if mixtral else "mlp"
        parts = ("w1", "w2", "w3") if mixtral else ("gate_proj", "up_proj", "down_proj")
        count = config.num_local_experts if mixtral else config.num_experts
        names.add(f"{p}.{block}.gate.weight")
        if config.model_type == "qwen2_moe":
            names.add(f"{p}.mlp.shared_expert_gate.weight")
            names |= {f"{p}.mlp.shared_expert.{x}_proj.weight" for x in ("gate", "up", "down")}
        names |= {f"{p}.{block}.experts.{e}.{x}.weight" for e in range(count) for x in parts}
    return names


def store(model, fixture, folder):
    """Writes weights and configuration with published names; returns bytes of weights."""
    config = fixture.config
    model = model.to(fixture.stored)
    if set(model.state_dict()) - {"lm_head.weight"} != expected_names(config) - {"lm_head.weight"}:
        raise SystemExit(f"{fixture.name}: tensor names differ from published checkpoints")
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    model.save_pretrained(folder, max_shard_size=fixture.shard_bytes)
    path = folder / "config.json"
    doc = json.loads(path.read_text())
    doc.pop("dtype", None)
    doc.pop("torch_dtype", None)
    for key, value in fixture.stored_config.items():
        doc[key] = value
        if value is None:
            doc.pop(key)
    doc[fixture.dtype_key] = re.sub(r"^torch\.", "", str(fixture.stored))
    path.write_text(json.dumps(dict(sorted(doc.items())), indent=2) + "\n")
    end = qwen_special(fixture.tokens)[0] if fixture.kind == "qwen" else 0
    generation = {
        "bos_token_id": config.bos_token_id,
        "do_sample": True,
        "eos_token_id": [config.eos_token_id, end],
        "pad_token_id": end,
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.8,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    return sum(f.stat().st_size for f in folder.glob("*.safetensors"))
