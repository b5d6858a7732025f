"""The tiny architectures, their configurations and how they are stored.

Shapes are chosen so that head_dim differs from hidden/heads, query heads share key/value heads,
dense and sparse layers mix, and (in qwen3moe-sparse) no width is a multiple of 16.
"""

import collections
import dataclasses
import json
import math
import re

import safetensors.torch
import torch
from transformers import (
    DbrxForCausalLM,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MixtralConfig,
    MixtralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from . import arctic, dbrx, mxfp4

CONTEXT = 512
MTP_LAYERS = 1  # of the fixtures that have such layers
CLASSES = {
    "arctic": arctic.ArcticForCausalLM,
    "dbrx": DbrxForCausalLM,
    "deepseek_v2": DeepseekV2ForCausalLM,
    "deepseek_v3": DeepseekV3ForCausalLM,
    "glm4_moe": Glm4MoeForCausalLM,
    "gpt_oss": GptOssForCausalLM,
    "llama4_text": Llama4ForCausalLM,
    "olmoe": OlmoeForCausalLM,
    "mixtral": MixtralForCausalLM,
    "qwen2_moe": Qwen2MoeForCausalLM,
    "qwen3_moe": Qwen3MoeForCausalLM,
    "qwen3_next": Qwen3NextForCausalLM,
}


@dataclasses.dataclass
class Fixture:
    name: str
    kind: str  # tokenizer shape: qwen, cl100k or smollm
    tokens: int  # entries of the tokenizer
    config: object
    stored: torch.dtype
    shard_bytes: int
    chat: bool
    dtype_key: str  # config.json spells the stored type torch_dtype, or dtype since 4.56
    seed: int
    steps: int
    stored_config: dict = dataclasses.field(default_factory=dict)  # keys that transformers drops
    min_margin: float = 1e-3  # cases with a smaller router margin are refused
    mtp: bool = False  # a block behind the last is stored beside the model
    fp8: bool = False  # projections are stored as F8_E4M3 with a scale per block of 128 x 128


# What published files of the class say besides, and transformers drops or adds.
DEEPSEEK_V2_KEYS = {
    "ep_size": 1,
    "head_dim": None,
    "mlp_bias": None,
    "moe_layer_freq": 1,
    "scoring_func": "softmax",
    "pretraining_tp": 1,
}
DEEPSEEK_V3_KEYS = {
    "ep_size": 1,
    "head_dim": None,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": MTP_LAYERS,
    "qk_head_dim": None,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "rope_interleave": None,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
# Which blocks have which attention is not listed, and nothing says that there is a block behind the last.
QWEN3_NEXT_KEYS = {
    "attention_bias": None,
    "full_attention_interval": 4,
    "layer_types": None,
    "rope_theta": 10000000,
    "use_sliding_window": False,
}


def yarn_scaling(**kw):
    return {
        "type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 32,
        "beta_slow": 1,
        **kw,
    }


@dataclasses.dataclass
class Variant:
    """Another configuration for the weights of a fixture."""

    name: str
    source: str
    config: dict
    min_margin: float = 1e-4  # its weights were not trained for it


def variants():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    return {v.name: v for v in (Variant("qwen3moe-yarn", "qwen3moe-tiny", {"rope_scaling": yarn}),)}


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


def harmony_special(size):
    """Ids of <|endoftext|>, <|return|> and <|call|> in a harmony tokenizer of `size` entries."""
    return size - 8, size - 7, size - 1


def gpt_oss_config(tokens):
    end, over, _ = harmony_special(tokens)
    return GptOssConfig(
        vocab_size=tokens,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=12,
        num_local_experts=8,
        num_experts_per_tok=3,
        sliding_window=20,
        max_position_embeddings=CONTEXT,
        rope_theta=150000.0,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 2.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": CONTEXT // 2,
        },
        rms_norm_eps=1e-5,
        pad_token_id=end,
        eos_token_id=over,
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
    end, im_end = qwen_special(1016)
    wide_norm = OlmoeConfig(
        vocab_size=1016,
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        hidden_act="silu",
        max_position_embeddings=CONTEXT,
        num_experts=12,
        num_experts_per_tok=3,
        norm_topk_prob=False,
        clip_qkv=1.25,
        router_aux_loss_coef=0.01,
        tie_word_embeddings=False,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        pad_token_id=end,
        eos_token_id=im_end,
    )
    grouped = Glm4MoeConfig(
        vocab_size=1016,
        hidden_size=64,
        intermediate_size=136,
        moe_intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        partial_rotary_factor=0.5,
        hidden_act="silu",
        max_position_embeddings=CONTEXT,
        attention_bias=True,
        use_qk_norm=True,
        n_routed_experts=12,
        num_experts_per_tok=3,
        n_shared_experts=2,
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        routed_scaling_factor=1.8,
        first_k_dense_replace=1,
        tie_word_embeddings=False,
        rope_theta=1000000.0,
        rms_norm_eps=1e-5,
        pad_token_id=end,
        eos_token_id=im_end,
    )
    end, im_end = qwen_special(640)
    chunked = Llama4TextConfig(
        vocab_size=640,
        hidden_size=48,
        intermediate_size=32,
        intermediate_size_mlp=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        hidden_act="silu",
        max_position_embeddings=CONTEXT,
        num_local_experts=6,
        num_experts_per_tok=1,
        interleave_moe_layer_step=2,
        use_qk_norm=True,
        no_rope_layers=[1, 0, 1, 0],
        attention_chunk_size=24,
        attn_temperature_tuning=True,
        floor_scale=8,
        attn_scale=0.2,
        rope_theta=10000.0,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=im_end,
    )
    fused = dbrx.config(CONTEXT, 640, end, im_end)
    end, im_end = qwen_special(1016)
    latent = DeepseekV2Config(
        vocab_size=1016,
        hidden_size=64,
        intermediate_size=104,
        moe_intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=28,
        kv_lora_rank=20,
        qk_nope_head_dim=12,
        qk_rope_head_dim=8,
        v_head_dim=14,
        hidden_act="silu",
        max_position_embeddings=CONTEXT,
        n_routed_experts=12,
        num_experts_per_tok=3,
        n_shared_experts=2,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        norm_topk_prob=False,
        routed_scaling_factor=2.5,
        first_k_dense_replace=1,
        tie_word_embeddings=True,
        rope_theta=10000.0,
        rope_scaling=yarn_scaling(mscale=1.0, mscale_all_dim=0.707),
        rms_norm_eps=1e-5,  # those of the latents stay at 1e-6
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=im_end,
    )
    block_scaled = DeepseekV3Config(
        vocab_size=1016,
        hidden_size=64,
        intermediate_size=264,  # three blocks of scales
        moe_intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=36,
        kv_lora_rank=28,
        qk_nope_head_dim=24,
        qk_rope_head_dim=12,
        v_head_dim=20,
        hidden_act="silu",
        max_position_embeddings=CONTEXT,
        n_routed_experts=12,
        num_experts_per_tok=3,
        n_shared_experts=1,
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        first_k_dense_replace=1,
        tie_word_embeddings=False,
        rope_theta=10000.0,
        rope_scaling=yarn_scaling(mscale=1.0, mscale_all_dim=1.0),
        rms_norm_eps=1e-6,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=im_end,
    )
    end, im_end = qwen_special(1024)
    hybrid = Qwen3NextConfig(
        vocab_size=1040,
        hidden_size=64,
        intermediate_size=96,
        moe_intermediate_size=48,
        shared_expert_intermediate_size=40,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        partial_rotary_factor=0.25,
        hidden_act="silu",
        max_position_embeddings=CONTEXT,
        full_attention_interval=4,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=24,
        linear_conv_kernel_dim=4,
        num_experts=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[1],
        router_aux_loss_coef=0.01,
        tie_word_embeddings=False,
        rope_theta=10000000.0,
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
            Fixture(
                "olmoe-tiny",
                "qwen",
                1016,
                wide_norm,
                torch.bfloat16,
                big,
                True,
                "torch_dtype",
                15,
                500,
                min_margin=1e-4,
            ),
            Fixture(
                "glm4moe-tiny",
                "qwen",
                1016,
                grouped,
                torch.bfloat16,
                big,
                True,
                "torch_dtype",
                16,
                500,
                {"num_nextn_predict_layers": MTP_LAYERS},
                mtp=True,
            ),
            Fixture(
                "dbrx-tiny",
                "cl100k",
                640,
                fused,
                torch.bfloat16,
                big,
                True,
                "torch_dtype",
                17,
                500,
                min_margin=1e-4,
            ),
            Fixture(
                "arctic-tiny",
                "smollm",
                640,
                arctic.config(CONTEXT, 640),
                torch.bfloat16,
                big,
                True,
                "torch_dtype",
                18,
                500,
                arctic.STORED_CONFIG,
                min_margin=1e-4,
            ),
            Fixture(
                "llama4-tiny",
                "qwen",
                640,
                chunked,
                torch.bfloat16,
                big,
                True,
                "torch_dtype",
                17,
                500,
            ),
            Fixture(
                "deepseekv2-tiny",
                "qwen",
                1016,
                latent,
                torch.bfloat16,
                big,
                True,
                "torch_dtype",
                17,
                500,
                DEEPSEEK_V2_KEYS,
                min_margin=1e-4,
            ),
            Fixture(
                "deepseekv3-tiny",
                "qwen",
                1016,
                block_scaled,
                torch.bfloat16,
                big,
                True,
                "torch_dtype",
                18,
                500,
                DEEPSEEK_V3_KEYS,
                min_margin=1e-4,
                mtp=True,
                fp8=True,
            ),
            Fixture(
                "qwen3next-tiny",
                "qwen",
                1024,
                hybrid,
                torch.bfloat16,
                big,
                True,
                "torch_dtype",
                19,
                700,
                QWEN3_NEXT_KEYS,
                mtp=True,
            ),
            Fixture(
                "gptoss-tiny",
                "harmony",
                512,
                gpt_oss_config(512),
                torch.bfloat16,
                big,
                False,  # its chats do not end within the ids of a stop case
                "torch_dtype",
                17,
                700,
                # as published: keys that transformers does not read, and how experts are stored
                {
                    "experts_per_token": 3,
                    "initial_context_length": CONTEXT // 2,
                    "swiglu_limit": 7.0,
                    "quantization_config": mxfp4.CONFIG,
                },
                min_margin=1e-4,
            ),
        )
    }


def scale_scores(model):
    """mscale_all_dim on the scores of DeepseekV2, as the model's own code has it and transformers'
    DeepseekV3; its DeepseekV2 leaves it out."""
    config = model.config
    if config.model_type == "deepseek_v2" and (config.rope_scaling or {}).get("mscale_all_dim"):
        yarn = config.rope_scaling
        gain = 0.1 * yarn["mscale_all_dim"] * math.log(yarn["factor"]) + 1
        for layer in model.model.layers:
            layer.self_attn.scaling = layer.self_attn.qk_head_dim**-0.5 * gain * gain
    return model


def create(fixture):
    fixture.config._attn_implementation = "eager"
    model = scale_scores(CLASSES[fixture.config.model_type](fixture.config))
    for name, value in model.named_parameters():
        if name.endswith("_proj.bias"):  # zero at first; nothing would ever move those of the keys
            torch.nn.init.normal_(value, std=0.3)
    for name, value in model.named_buffers():
        if name.endswith("e_score_correction_bias"):  # moved by balancing, which is not played here
            torch.nn.init.normal_(value, std=0.1)
    if fixture.config.model_type == "gpt_oss":
        prepare_gpt_oss(model)
    if fixture.config.model_type == "qwen3_next":
        prepare_qwen3_next(model)
    return model


@torch.no_grad()
def prepare_qwen3_next(model):
    """Convolutions that pass something on; states of which some last for a position, some for hundreds."""
    for layer in model.model.layers:
        if layer.layer_type != "linear_attention":
            continue
        mixer = layer.linear_attn
        torch.nn.init.normal_(mixer.conv1d.weight, std=0.4)
        step = torch.exp(torch.empty_like(mixer.dt_bias).uniform_(math.log(1e-3), math.log(0.3)))
        mixer.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))  # softplus gives the step
        mixer.A_log.uniform_(0, math.log(8))


@torch.no_grad()
def prepare_gpt_oss(model):
    """Sinks and biases that matter, gates and ups beyond their limits, weights of four bits."""
    for name, value in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(value, std=1.0)
        if name.endswith(("router.bias", "_proj_bias")):
            torch.nn.init.normal_(value, std=0.2)
    for layer in model.model.layers:
        experts = layer.mlp.experts
        experts.gate_up_proj_bias[:, ::16] = 8.0
        experts.gate_up_proj_bias[:, 1::16] = 8.0
        experts.gate_up_proj_bias[:, 3::16] = -8.0
        for name in mxfp4.NAMES:
            torch.nn.utils.parametrize.register_parametrization(experts, name, mxfp4.Rounded())


# What a router ranks its experts by, each one's share of it, and what it ranks their groups by.
Choice = collections.namedtuple("Choice", "rank share groups")


def grouped_choice(router, hidden):
    """A router of noaux_tc on `hidden`: sigmoid scores, biased, only in the best groups."""
    rows = hidden.reshape(-1, hidden.shape[-1])
    score = (rows @ router.weight.T).sigmoid()
    biased = score + router.e_score_correction_bias
    each = biased.view(len(rows), router.n_group, -1)
    groups = each.topk(2, -1).values.sum(-1)
    kept = torch.zeros_like(groups, dtype=torch.bool)
    kept.scatter_(-1, groups.topk(router.topk_group, -1).indices, True)
    rank = each.masked_fill(~kept[..., None], 0.0).flatten(1)
    return Choice(rank, score / score.sum(-1, keepdim=True), groups)


def plain_choice(router, hidden):
    """A router that is a matrix and a softmax on `hidden`."""
    share = torch.softmax(router(hidden.reshape(-1, hidden.shape[-1])), -1)
    return Choice(share, share, None)


def softmax_choice(router, hidden):
    """A router of gpt-oss on `hidden`."""
    rows = hidden.reshape(-1, hidden.shape[-1])
    share = torch.softmax(rows @ router.weight.T + router.bias, -1)
    return Choice(share, share, None)


def limited_choice(router, hidden):
    """A router of DeepSeek-V2 on `hidden`: probabilities, only in the groups of the best ones."""
    score = torch.softmax(hidden.reshape(-1, hidden.shape[-1]) @ router.weight.T, -1)
    each = score.view(len(score), router.num_group, -1)
    groups = each.max(-1).values
    kept = torch.zeros_like(groups, dtype=torch.bool)
    kept.scatter_(-1, groups.topk(router.topk_group, -1).indices, True)
    return Choice(each.masked_fill(~kept[..., None], 0.0).flatten(1), score, groups)


HOOKED = {
    "deepseek_v2": limited_choice,
    "deepseek_v3": grouped_choice,
    "glm4_moe": grouped_choice,
    "gpt_oss": softmax_choice,
}


def forward(model, ids):
    """(logits [batch, positions, vocab], Choice of each routed layer) of ids [batch, positions]"""
    if model.config.model_type == "llama4_text":
        return llama4_forward(model, ids)
    if model.config.model_type not in HOOKED:
        out = model(input_ids=ids, output_router_logits=True, use_cache=False)
        done = model.config.model_type == "dbrx"  # whose routers return probabilities
        probs = [x if done else torch.softmax(x, -1) for x in out.router_logits]
        return out.logits, [Choice(p, p, None) for p in probs]
    seen, hooks = [], []
    for layer in sparse_layers(model.config):
        gate = gate_of(model, layer)
        hooks.append(gate.register_forward_pre_hook(lambda m, x: seen.append((m, x[0]))))
    logits = model(input_ids=ids, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return logits, [HOOKED[model.config.model_type](m, x) for m, x in seen]


def llama4_forward(model, ids):
    """Choices by the sigmoids of a router's logits."""
    seen, hooks = [], []
    for layer in sparse_layers(model.config):
        gate = gate_of(model, layer)
        hooks.append(gate.register_forward_hook(lambda m, x, y: seen.append(y[1])))
    logits = model(input_ids=ids, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return logits, [Choice(x.sigmoid(), torch.softmax(x, -1), None) for x in seen]


def load(folder):
    """The stored weights, widened to f32."""
    doc = json.loads((folder / "config.json").read_text())
    cls = CLASSES[doc["model_type"]]
    if cls is GptOssForCausalLM:
        return load_gpt_oss(folder)
    if "quantization_config" in doc:
        return load_fp8(cls, doc, folder)
    model, info = cls.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    mtp = f"model.layers.{model.config.num_hidden_layers}."  # transformers does not read it either
    info["unexpected_keys"] = [x for x in info["unexpected_keys"] if not x.startswith(mtp)]
    bad = {k: v for k, v in info.items() if v}
    if bad:
        raise SystemExit(f"{folder}: does not load back: {bad}")
    return scale_scores(model).eval()


def blocks_of(scale, shape):
    """The scale of each value of a matrix."""
    wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return wide[: shape[0], : shape[1]]


def load_fp8(cls, doc, folder):
    """Blocks of F8_E4M3 times their scales, in f32."""
    doc = {k: v for k, v in doc.items() if k != "quantization_config"}
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    wide = {}
    for name, value in tensors.items():
        if name.startswith(f"model.layers.{doc['num_hidden_layers']}.") or name.endswith("_scale_inv"):
            continue
        wide[name] = value.to(torch.float32)
        if value.dtype == torch.float8_e4m3fn:
            wide[name] *= blocks_of(tensors[name + "_scale_inv"], value.shape)
    config = cls.config_class(**doc)
    config._attn_implementation = "eager"
    model = cls(config).float()
    model.load_state_dict(wide, strict=True)
    return model.eval()


def top_k(config):
    return config.ffn_config.moe_top_k if config.model_type == "dbrx" else config.num_experts_per_tok


def load_gpt_oss(folder):
    """Widened as transformers widens without a GPU for it, but to f32."""
    config = GptOssConfig.from_pretrained(folder)
    del config.quantization_config
    config._attn_implementation = "eager"
    model = GptOssForCausalLM(config).float()
    model.load_state_dict(mxfp4.widen(safetensors.torch.load_file(folder / "model.safetensors")))
    return model.eval()


def sparse_layers(config):
    if config.model_type == "llama4_text":
        return list(config.moe_layers)
    if config.model_type in ("mixtral", "olmoe", "dbrx", "gpt_oss"):
        return list(range(config.num_hidden_layers))
    if config.model_type == "arctic":
        return [i for i in range(config.num_hidden_layers) if arctic.is_routed(config, i)]
    if config.model_type in HOOKED:
        return list(range(config.first_k_dense_replace, config.num_hidden_layers))
    return [
        i
        for i in range(config.num_hidden_layers)
        if i not in config.mlp_only_layers and (i + 1) % config.decoder_sparse_step == 0
    ]


def moe_of(model, layer):
    block = model.model.layers[layer]
    if hasattr(block, "feed_forward"):
        return block.feed_forward
    return block.block_sparse_moe if hasattr(block, "block_sparse_moe") else block.mlp


def gate_of(model, layer):
    moe = moe_of(model, layer)
    return moe.router if hasattr(moe, "router") else moe.gate


def exchange(model, layer, a, b):
    """Two experts of one layer."""
    if model.config.model_type == "dbrx":
        dbrx.exchange(model, layer, a, b)
        return
    experts = moe_of(model, layer).experts
    if not isinstance(experts, torch.nn.ModuleList):  # all of a layer in one tensor
        for stack in experts.parameters():
            stack[[a, b]] = stack[[b, a]]
        return
    experts[a], experts[b] = experts[b], experts[a]


def expected_names(config):
    """Tensor names of a published checkpoint of this configuration."""
    if config.model_type == "dbrx":
        return dbrx.expected_names(config)
    if config.model_type == "arctic":
        return arctic.expected_names(config)
    names = {"model.embed_tokens.weight", "model.norm.weight"}
    if not config.tie_word_embeddings:
        names.add("lm_head.weight")
    mixtral = config.model_type == "mixtral"
    sparse = sparse_layers(config)
    if config.model_type == "llama4_text":
        return names | llama4_names(config, sparse)
    for i in range(config.num_hidden_layers):
        p = f"model.layers.{i}"
        latent = config.model_type in ("deepseek_v2", "deepseek_v3")
        own = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
        own += ("q_a_layernorm", "kv_a_layernorm")
        own = own if latent else ("q_proj", "k_proj", "v_proj", "o_proj")
        if config.model_type == "qwen3_next" and config.layer_types[i] == "linear_attention":
            parts = ("in_proj_qkvz.weight", "in_proj_ba.weight", "conv1d.weight", "out_proj.weight", "norm.weight")
            names |= {f"{p}.linear_attn.{x}" for x in (*parts, "dt_bias", "A_log")}
        else:
            names |= {f"{p}.self_attn.{x}.weight" for x in own}
        names |= {f"{p}.{x}_layernorm.weight" for x in ("input", "post_attention")}
        if config.model_type == "gpt_oss":
            names |= {f"{p}.self_attn.{x}_proj.bias" for x in "qkvo"} | {f"{p}.self_attn.sinks"}
            names |= {f"{p}.mlp.router.{x}" for x in ("weight", "bias")}
            names |= {f"{p}.mlp.experts.{n}{x}" for n in mxfp4.NAMES for x in ("_blocks", "_scales", "_bias")}
            continue
        full = config.model_type == "qwen3_next" and config.layer_types[i] == "full_attention"
        if full or config.model_type in ("qwen3_moe", "olmoe", "glm4_moe"):
            names |= {f"{p}.self_attn.{x}_norm.weight" for x in "qk"}
        if config.model_type in ("qwen2_moe", "glm4_moe"):
            names |= {f"{p}.self_attn.{x}_proj.bias" for x in "qkv"}
        if i not in sparse:
            names |= {f"{p}.mlp.{x}_proj.weight" for x in ("gate", "up", "down")}
            continue
        block = "block_sparse_moe" if mixtral else "mlp"
        parts = ("w1", "w2", "w3") if mixtral else ("gate_proj", "up_proj", "down_proj")
        many = config.model_type in HOOKED
        count = config.num_experts if not (mixtral or many) else 0
        count = count or (config.num_local_experts if mixtral else config.n_routed_experts)
        names.add(f"{p}.{block}.gate.weight")
        if config.model_type in ("qwen2_moe", "qwen3_next"):
            names.add(f"{p}.mlp.shared_expert_gate.weight")
            names |= {f"{p}.mlp.shared_expert.{x}_proj.weight" for x in ("gate", "up", "down")}
        if config.model_type in ("deepseek_v3", "glm4_moe"):
            names.add(f"{p}.mlp.gate.e_score_correction_bias")
        if many:
            names |= {f"{p}.mlp.shared_experts.{x}_proj.weight" for x in ("gate", "up", "down")}
        names |= {f"{p}.{block}.experts.{e}.{x}.weight" for e in range(count) for x in parts}
    return names


def llama4_names(config, sparse):
    names, mlp = set(), ("gate_proj", "up_proj", "down_proj")
    for i in range(config.num_hidden_layers):
        p = f"model.layers.{i}"
        names |= {f"{p}.self_attn.{x}_proj.weight" for x in "qkvo"}
        names |= {f"{p}.{x}_layernorm.weight" for x in ("input", "post_attention")}
        if i not in sparse:
            names |= {f"{p}.feed_forward.{x}.weight" for x in mlp}
            continue
        names |= {f"{p}.feed_forward.shared_expert.{x}.weight" for x in mlp}
        names |= {f"{p}.feed_forward.experts.{x}" for x in ("gate_up_proj", "down_proj")}
        names.add(f"{p}.feed_forward.router.weight")
    return names


def to_fp8(tensors):
    """Projections as published: F8_E4M3, a scale per block of 128 x 128 values, in place."""
    for name, value in list(tensors.items()):
        if value.dim() != 2 or "_proj" not in name or "eh_proj" in name:
            continue
        value = value.float()
        rows, cols = ((n + 127) // 128 for n in value.shape)
        scale = torch.empty(rows, cols)
        for i in range(rows):
            for j in range(cols):
                part = value[i * 128 : (i + 1) * 128, j * 128 : (j + 1) * 128]
                scale[i, j] = part.abs().max() / torch.finfo(torch.float8_e4m3fn).max
        tensors[name] = (value / blocks_of(scale, value.shape)).to(torch.float8_e4m3fn)
        tensors[name + "_scale_inv"] = scale


def write_config(fixture, folder):
    """Rewrites config.json with the fixture's own keys."""
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


def store_gpt_oss(model, fixture, folder):
    tensors = {}
    for layer in model.model.layers:
        for name in mxfp4.NAMES:
            torch.nn.utils.parametrize.remove_parametrizations(layer.mlp.experts, name)
    for name, value in model.state_dict().items():
        if name.rpartition(".")[2] in mxfp4.NAMES:
            tensors[name + "_blocks"], tensors[name + "_scales"] = mxfp4.pack(value)
        else:
            tensors[name] = value.to(fixture.stored)
    if set(tensors) != expected_names(fixture.config):
        raise SystemExit(f"{fixture.name}: tensor names differ from published checkpoints")
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    fixture.config.architectures = ["GptOssForCausalLM"]
    fixture.config.save_pretrained(folder)
    write_config(fixture, folder)
    end, over, call = harmony_special(fixture.tokens)
    generation = {
        "bos_token_id": end - 1,
        "do_sample": True,
        "eos_token_id": [over, end, call],
        "pad_token_id": end,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    return (folder / "model.safetensors").stat().st_size


def store(model, fixture, folder):
    """Writes weights and configuration with published names; returns bytes of weights."""
    config = fixture.config
    if config.model_type == "gpt_oss":
        return store_gpt_oss(model, fixture, folder)
    wide = {n: b.clone() for n, b in model.named_buffers() if "correction_bias" in n}
    model = model.to(fixture.stored)
    for name, value in wide.items():  # published in f32 whatever the weights are in
        gate = model.get_submodule(name.rpartition(".")[0])
        gate.e_score_correction_bias = value
    if set(model.state_dict()) - {"lm_head.weight"} != expected_names(config) - {"lm_head.weight"}:
        raise SystemExit(f"{fixture.name}: tensor names differ from published checkpoints")
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    model.save_pretrained(folder, max_shard_size=fixture.shard_bytes)
    if fixture.fp8:
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        to_fp8(tensors)
        safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_config(fixture, folder)
    end = qwen_special(fixture.tokens)[0] if fixture.kind != "smollm" else 0
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
