"""GGUF files for tests, written with gguf-py (PyPI): nothing here shares code with Sluice.

    python tools/py/gguf_make.py FOLDER OUT.gguf [--type F32|BF16|F16|Q8_0|Q4_0]   a checkpoint folder as GGUF
    python tools/py/gguf_make.py --mixed FOLDER OUT.gguf                           a small model in every block
                                              format with random weights, and FOLDER: its values as f32 safetensors

Rows of q and k are paired for arch llama, experts are stacked, as converters of the GGUF world do.
"""

import argparse
import json
import pathlib
import struct

import gguf_families
import numpy as np
from gguf import GGML_QUANT_SIZES, GGUFWriter, quants
from gguf import GGMLQuantizationType as T

ARCHS = {
    "MixtralForCausalLM": ("llama", "block_sparse_moe.", {"w1": "gate", "w3": "up", "w2": "down"}),
    "Qwen3MoeForCausalLM": ("qwen3moe", "mlp.", {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}),
    "Qwen2MoeForCausalLM": ("qwen2moe", "mlp.", {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}),
}
NAMES = {
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "block_sparse_moe.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
}
NUMPY = {"F32": "<f4", "F16": "<f2"}
RAW = {"F8_E4M3": "u1", "U8": "u1"}


def load(folder):
    """{name: float32 array}, u8 of types whose values need another tensor"""
    out = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        raw = path.read_bytes()
        (size,) = struct.unpack_from("<Q", raw)
        for name, entry in json.loads(raw[8 : 8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = (8 + size + x for x in entry["data_offsets"])
            if entry["dtype"] == "BF16":
                bits = np.frombuffer(raw[begin:end], "<u2").astype(np.uint32) << 16
                values = bits.view(np.float32)
            elif entry["dtype"] in RAW:
                values = np.frombuffer(raw[begin:end], RAW[entry["dtype"]])
            else:
                values = np.frombuffer(raw[begin:end], NUMPY[entry["dtype"]]).astype(np.float32)
            out[name] = values.reshape(entry["shape"])
    return out


IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], "<f4")


def quantize(w, t):
    """What gguf-py makes of it; IQ4_NL, which it only reads: the nearest entry of the table."""
    if t != T.IQ4_NL:
        return quants.quantize(w, t)
    b = np.ascontiguousarray(w).reshape(-1, 32)
    d = (np.abs(b).max(1) / 127).astype("<f2")
    scaled = b / np.where(d == 0, 1, d.astype("<f4"))[:, None]
    code = np.abs(scaled[..., None] - IQ4_NL).argmin(-1).astype(np.uint8)
    raw = np.concatenate([d[:, None].view(np.uint8), code[:, :16] | code[:, 16:] << 4], 1)
    return raw.reshape(*w.shape[:-1], w.shape[-1] // 32 * 18)


def paired(w, heads):
    """Rows i and i + half of each head become 2i and 2i + 1."""
    rest = w.shape[1:]
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *rest).swapaxes(1, 2).reshape(w.shape)


def tensors_of(folder, config, **shape):
    """{GGUF name: float32 array}"""
    if family := gguf_families.CLASSES.get(config["architectures"][0]):
        return gguf_families.tensors_of(family, load(folder), config, **shape)
    arch, prefix, parts = ARCHS[config["architectures"][0]]
    out, stacks = {}, {}
    for name, w in load(folder).items():
        if not name.startswith("model.layers."):
            table = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                     "lm_head.weight": "output.weight"}
            out[table[name]] = w
            continue
        layer, rest = name[len("model.layers.") :].split(".", 1)
        if rest.startswith(prefix + "experts."):
            expert, part, _ = rest[len(prefix + "experts.") :].split(".")
            stacks.setdefault(f"blk.{layer}.ffn_{parts[part]}_exps.weight", {})[int(expert)] = w
            continue
        if arch == "llama" and rest.startswith("self_attn.q_proj"):
            w = paired(w, config["num_attention_heads"])
        if arch == "llama" and rest.startswith("self_attn.k_proj"):
            w = paired(w, config["num_key_value_heads"])
        if rest == "mlp.shared_expert_gate.weight":
            w = w.reshape(-1)
        out[f"blk.{layer}.{NAMES[rest]}"] = w
    for name, experts in stacks.items():
        out[name] = np.stack([experts[i] for i in range(len(experts))])
    return out


def add_config(writer, arch, c):
    head_dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_expert_count(c.get("num_experts") or c["num_local_experts"])
    writer.add_expert_used_count(c["num_experts_per_tok"])
    if "moe_intermediate_size" in c:
        writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in c:
        writer.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if not c.get("norm_topk_prob", arch == "llama") and arch != "qwen2moe":
        writer.add_expert_weights_norm(False)


def add_tokenizer(writer, folder, config, pre=None):
    folder = pathlib.Path(folder)
    root = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    extra = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokens = [f"[PAD{i}]" for i in range(config["vocab_size"])]
    kinds = [5] * len(tokens)
    for text, i in root["model"]["vocab"].items():
        tokens[i], kinds[i] = text, 1
    for token in root["added_tokens"]:
        tokens[token["id"]], kinds[token["id"]] = token["content"], 3 if token["special"] else 4
    merges = [m if isinstance(m, str) else " ".join(m) for m in root["model"]["merges"]]
    steps = json.dumps(root["pre_tokenizer"])
    writer.add_tokenizer_model("gpt2")
    usual = "qwen2" if "(?i:" in steps else "smollm" if "Digits" in steps else "gpt-2"
    usual = "gpt-4o" if "\\p{Lu}" in steps else "dbrx" if "{1,3}" in steps else usual
    writer.add_tokenizer_pre(pre or usual)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    if config.get("bos_token_id") is not None:
        writer.add_bos_token_id(config["bos_token_id"])
    eos = config["eos_token_id"]
    writer.add_eos_token_id(eos[0] if isinstance(eos, list) else eos)
    writer.add_add_bos_token(bool(extra.get("add_bos_token")))
    if extra.get("chat_template"):
        writer.add_chat_template(extra["chat_template"])


def write(out, folder, kind, pick=None, parts=None, rounded=None, pre=None, **shape):
    """`pick(name, array)` may give another type for a tensor; `parts`: how GGUFWriter splits; `rounded`:
    values are those that blocks of this type have; rows that are no whole blocks stay F32; `pre`: how texts are split;
    `shape`: as gguf_families.tensors_of."""
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    family = gguf_families.CLASSES.get(config["architectures"][0])
    arch = family or ARCHS[config["architectures"][0]][0]
    writer = GGUFWriter(str(out), arch, **(parts or {}))
    if family:
        gguf_families.add_config(writer, arch, config, **shape)
    else:
        add_config(writer, arch, config)
    add_tokenizer(writer, folder, config, pre)
    for name, w in tensors_of(folder, config, **shape).items():
        whole = w.shape[-1] % GGML_QUANT_SIZES[T[rounded or kind]][0] == 0
        plain = w.ndim == 1 or not whole or "ffn_gate_inp" in name or "conv1d" in name
        t = T.F32 if plain else T[kind]
        if pick:
            t = pick(name, w) or t
        if rounded and not plain:
            w = quants.dequantize(quantize(w, T[rounded]), T[rounded]).reshape(w.shape)
        data = np.ascontiguousarray(w) if t == T.F32 else quantize(w, t)
        writer.add_tensor(name, data, raw_dtype=None if t in (T.F32, T.F16) else t)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ---- the mixed model ----

MIXED = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "sliding_window": None,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
BYTES = {"Q4_K": 144, "Q5_K": 176, "Q6_K": 210}
MIX = {  # by block and tensor; the rest is F32
    "token_embd": "Q8_0", "output": "Q6_K", "attn_q": "Q4_K", "attn_k": "Q5_K", "attn_v": "Q6_K",
    "attn_output": "Q4_0", "ffn_gate_exps": "Q4_K", "ffn_up_exps": "Q5_K", "ffn_down_exps": "Q6_K",
}
SECOND = {"ffn_gate_exps": "Q8_0", "ffn_up_exps": "Q4_0", "ffn_down_exps": "Q4_K", "attn_q": "BF16", "attn_k": "F16"}


def blocks(rng, kind, shape):
    """Random blocks of values with a spread of about 1 / sqrt(columns)."""
    n = int(np.prod(shape)) // 256
    std = 1 / np.sqrt(shape[-1])
    b = rng.integers(0, 256, (n, BYTES[kind]), dtype=np.uint8)
    wide = {"Q4_K": 257, "Q5_K": 514, "Q6_K": 1360}[kind]
    d = (std / wide * rng.uniform(0.9, 1.1, n)).astype(np.float32)
    at = 208 if kind == "Q6_K" else 0
    b[:, at : at + 2] = d.astype(np.float16)[:, None].view(np.uint8)
    if kind != "Q6_K":
        least = (7.5 if kind == "Q4_K" else 15.5) * d
        b[:, 2:4] = least.astype(np.float16)[:, None].view(np.uint8)
    return b.reshape(*shape[:-1], shape[-1] // 256 * BYTES[kind])


def mixed_tensors(c, rng):
    """[(GGUF name, raw data, type, values)]"""
    d, f, e = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    shapes = [("token_embd", (c["vocab_size"], d)), ("output_norm", (d,)), ("output", (c["vocab_size"], d))]
    for i in range(c["num_hidden_layers"]):
        shapes += [(f"blk.{i}.{n}", s) for n, s in [
            ("attn_norm", (d,)), ("attn_q", (q, d)), ("attn_k", (kv, d)), ("attn_v", (kv, d)),
            ("attn_output", (d, q)), ("ffn_norm", (d,)), ("ffn_gate_inp", (e, d)), ("ffn_gate_exps", (e, f, d)),
            ("ffn_up_exps", (e, f, d)), ("ffn_down_exps", (e, d, f))]]
    for name, shape in shapes:
        part = name.split(".")[-1]
        kind = SECOND.get(part, MIX.get(part, "F32")) if name.startswith("blk.1.") else MIX.get(part, "F32")
        t = T[kind]
        if kind in BYTES:
            raw = blocks(rng, kind, shape)
        else:
            w = rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[-1]))
            if part == "token_embd":
                w *= np.float32(16)
            if len(shape) == 1:
                w = 1 + np.float32(0.1) * rng.standard_normal(shape).astype(np.float32)
            raw = quants.quantize(w, t)
        values = quants.dequantize(raw, t).astype(np.float32).reshape(shape)
        yield name + ".weight", raw, t, values


def hf_names(c, name, w):
    """[(checkpoint name, values)] of a GGUF tensor: what tensors_of does, backwards."""
    whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
             "output.weight": "lm_head.weight"}
    if name in whole:
        return [(whole[name], w)]
    _, layer, rest = name.split(".", 2)
    prefix = f"model.layers.{layer}."
    if rest.endswith("_exps.weight"):
        part = {"gate": "w1", "up": "w3", "down": "w2"}[rest.split("_")[1]]
        return [(f"{prefix}block_sparse_moe.experts.{e}.{part}.weight", w[e]) for e in range(len(w))]
    if rest in ("attn_q.weight", "attn_k.weight"):
        half = c["head_dim"] // 2
        w = w.reshape(-1, half, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
    back = {v: k for k, v in NAMES.items() if not k.startswith("mlp.")}
    return [(prefix + back[rest], w)]


def write_safetensors(path, tensors):
    head, at = {}, 0
    for name, w in tensors:
        head[name] = {"dtype": "F32", "shape": list(w.shape), "data_offsets": [at, at + 4 * w.size]}
        at += 4 * w.size
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, w in tensors:
            f.write(np.ascontiguousarray(w, "<f4").tobytes())


def write_mixed(out, folder, tokenizer):
    """The model as GGUF, and as a folder of f32 safetensors with the values of its blocks."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(str(out), "llama")
    add_config(writer, "llama", MIXED)
    add_tokenizer(writer, tokenizer, MIXED)
    plain = []
    for name, raw, t, values in mixed_tensors(MIXED, np.random.default_rng(11)):
        writer.add_tensor(name, raw, raw_dtype=None if t in (T.F32, T.F16) else t)
        plain += hf_names(MIXED, name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write_safetensors(folder / "model.safetensors", plain)
    (folder / "config.json").write_text(json.dumps(MIXED, indent=1))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((pathlib.Path(tokenizer) / name).read_bytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="checkpoint folder; with --mixed the folder to write")
    parser.add_argument("out", help="GGUF file to write")
    parser.add_argument("--type", default="F32")
    parser.add_argument("--mixed", action="store_true")
    args = parser.parse_args()
    if args.mixed:
        golden = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
        write_mixed(args.out, args.source, golden / "mixtral-tiny")
    else:
        write(args.out, args.source, args.type)


if __name__ == "__main__":
    main()
