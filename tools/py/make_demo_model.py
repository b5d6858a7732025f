#!/usr/bin/env python3
"""Make the demo model: SmolLM2-135M-Instruct, upcycled to a Mixtral with 8 experts, top 2.

    make_demo_model.py OUT_DIR [--cache DIR] [--check]

OUT_DIR becomes a Hugging Face folder of MixtralForCausalLM (1.4 GB of bf16). A complete folder of
this recipe is kept as it is, so a second run takes a second; --check recomputes its sums.
Exit status: 0 done, 1 something is wrong with the source or the disk, 2 usage, 3 the source
cannot be fetched (the caller falls back to a fixture). Needs Python 3.9, numpy and pip; running
the model needs none of them.

The recipe ("sparse upcycling", arXiv:2212.05055) copies the dense model's attention, norms and
embeddings, and makes every expert e of layer l from the dense feed-forward matrices W:

    W_e = bf16(W * (1 + NOISE * u)),   u uniform in (-1, 1) from PCG64((SEED, l, e, matrix))

so experts differ by about NOISE/sqrt(3) of their size and a pair of them averages back towards W.
Mixtral's two routing weights sum to 1, hence with NOISE = 0 the model is the dense model again
(make_demo_golden.py checks that). The router is uniform noise as well; ROUTER_SEEDS, one number a
layer, come from the search of `make_demo_golden.py router` for an even load (layers 24 and 29
from a run on unrounded weights, where the two best seeds of each change places). Only raw
generator bits and single float operations are used, so the bytes are equal on every machine.
"""
import argparse
import json
import os
import shutil
import sys
import time

import numpy as np

import demo_source
from demo_text import LICENSE_NOTE, generation_config, tokenizer_config, tokenizer_json
from gguf_read import GgufError
from hf_write import ShardWriter, json_bytes, write_file

RECIPE = 1
EXPERTS, TOP_K = 8, 2
NOISE = 0.15
SEED = 20240711
SHARD_BYTES = 500_000_000
ROUTER_STD = 4.0
ROUTER_SEEDS = [
    573, 1460, 1551, 1425, 762, 599, 1744, 180, 1434, 1630, 589, 529, 462, 1115, 109, 1320, 1327,
    1963, 1079, 1948, 351, 188, 207, 211, 1510, 684, 1646, 722, 281, 199,
]
MARKER = "sluice_demo.json"
MATRICES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def uniform(key, shape):
    """Float32 in (-1, 1), exact multiples of 2^-15, from the generator's raw bits."""
    n = int(np.prod(shape))
    raw = np.random.PCG64(key).random_raw((n + 3) // 4).astype("<u8", copy=False)
    u = raw.view("<u2")[:n].astype(np.float32)
    u -= np.float32(32767.5)
    u *= np.float32(1 / 32768)
    return u.reshape(shape)


def expert_matrix(dense, layer, expert, which, noise):
    """One expert's copy of a dense matrix: dense * (1 + noise * u)."""
    if noise == 0:
        return dense
    factor = uniform((SEED, layer, expert, int(which[1])), dense.shape)
    factor *= np.float32(noise)
    factor += np.float32(1)
    factor *= dense
    return factor


def router_matrix(norm, layer, seed):
    """[EXPERTS, hidden] uniform, scaled so that a normed row (rms = rms of the norm's weights)
    gives router logits of about ROUTER_STD; the scale is cut to 3 digits to be portable."""
    rms = float(np.sqrt(np.mean(np.square(norm.astype(np.float64)))))
    scale = float("%.3g" % (ROUTER_STD * 3 ** 0.5 / (rms * norm.size ** 0.5)))
    return uniform((SEED, layer, 1000, seed), (EXPERTS, norm.size)) * np.float32(scale)


def tensor_plan(dense):
    """Every tensor of the Mixtral in file order: (name, shape)."""
    yield "model.embed_tokens.weight", (dense.vocab, dense.hidden)
    for l in range(dense.layers):
        base = "model.layers.%d." % l
        for part in ("input_layernorm", "self_attn.q_proj", "self_attn.k_proj",
                     "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm"):
            name = base + part + ".weight"
            yield name, dense.shape(name)
        yield base + "block_sparse_moe.gate.weight", (EXPERTS, dense.hidden)
        for e in range(EXPERTS):
            for w, part in MATRICES.items():
                yield (base + "block_sparse_moe.experts.%d.%s.weight" % (e, w),
                       dense.shape(base + "mlp." + part + ".weight"))
    yield "model.norm.weight", (dense.hidden,)


def write_weights(dense, folder, noise, say):
    """Stream all tensors into shards; returns file name -> SHA-256."""
    plan = list(tensor_plan(dense))
    with ShardWriter(folder, plan, SHARD_BYTES) as out:
        loaded, norm = {}, None
        for name, _ in plan:
            part = name.split(".")
            if "experts" in part:
                layer, expert, which = int(part[2]), int(part[5]), part[6]
                if which not in loaded:
                    loaded[which] = dense.load("model.layers.%d.mlp.%s.weight"
                                               % (layer, MATRICES[which]))
                out.add(name, expert_matrix(loaded[which], layer, expert, which, noise))
            elif "gate" in part:
                layer = int(part[2])
                say("layer %d of %d" % (layer + 1, dense.layers))
                loaded = {}
                out.add(name, router_matrix(norm, layer, ROUTER_SEEDS[layer]))
            else:
                tensor = dense.load(name)
                norm = tensor if "post_attention_layernorm" in part else norm
                out.add(name, tensor)
    return out.sha256


def config(dense):
    meta = dense.meta
    return {
        "architectures": ["MixtralForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "head_dim": dense.hidden // dense.heads,
        "hidden_act": "silu",
        "hidden_size": dense.hidden,
        "initializer_range": 0.02,
        "intermediate_size": dense.inner,
        "max_position_embeddings": dense.number("context_length"),
        "model_type": "mixtral",
        "num_attention_heads": dense.heads,
        "num_experts_per_tok": TOP_K,
        "num_hidden_layers": dense.layers,
        "num_key_value_heads": dense.kv_heads,
        "num_local_experts": EXPERTS,
        "output_router_logits": False,
        "rms_norm_eps": float("%.6g" % dense.number("attention.layer_norm_rms_epsilon")),
        "rope_theta": dense.number("rope.freq_base"),
        "router_aux_loss_coef": 0.001,
        "router_jitter_noise": 0.0,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": dense.vocab,
    }


def write_folder(dense, folder, noise, say):
    """Fill an empty folder; returns file name -> SHA-256."""
    sums = write_weights(dense, folder, noise, say)
    for name, value in (("config.json", config(dense)),
                        ("generation_config.json", generation_config(dense.meta)),
                        ("tokenizer.json", tokenizer_json(dense.meta)),
                        ("tokenizer_config.json", tokenizer_config(dense.meta))):
        sums[name] = write_file(folder, name, json_bytes(value))
    note = LICENSE_NOTE % (demo_source.PACKAGE, demo_source.VERSION, demo_source.GGUF_SHA256)
    sums["NOTICE"] = write_file(folder, "NOTICE", note.encode())
    licence = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "LICENSE")
    with open(licence, "rb") as f:
        sums["LICENSE"] = write_file(folder, "LICENSE", f.read())
    return sums


def recipe(noise):
    return {"recipe": RECIPE, "noise": noise, "seed": SEED, "router_std": ROUTER_STD,
            "router_seeds": ROUTER_SEEDS, "source_sha256": demo_source.GGUF_SHA256}


def complete(folder, noise, check):
    """The marker of a finished folder of this very recipe, else None."""
    try:
        with open(os.path.join(folder, MARKER), encoding="utf-8") as f:
            marker = json.load(f)
        if marker["made_by"] != recipe(noise):
            return None
        for name, row in marker["files"].items():
            path = os.path.join(folder, name)
            if os.path.getsize(path) != row["bytes"]:
                return None
            if check and demo_source.file_sha256(path) != row["sha256"]:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return marker


def refuse_foreign(out_dir):
    if os.path.isdir(out_dir) and os.listdir(out_dir) and \
            not os.path.exists(os.path.join(out_dir, MARKER)):
        raise OSError("%s: is not empty and not a demo model, so it is left alone" % out_dir)


def make(out_dir, cache, noise, say):
    """Build beside OUT_DIR and move into place, so that a broken run never looks complete."""
    refuse_foreign(out_dir)
    path = demo_source.fetch(cache, say)
    part = out_dir + ".part"
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    try:
        sums = write_folder(demo_source.DenseModel(path), part, noise, say)
        files = {name: {"bytes": os.path.getsize(os.path.join(part, name)), "sha256": sums[name]}
                 for name in sorted(sums)}
        marker = {"made_by": recipe(noise), "files": files}
        write_file(part, MARKER, json_bytes(marker))
        shutil.rmtree(out_dir, ignore_errors=True)
        os.rename(part, out_dir)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return marker


def progress(start):
    """One line that is redrawn on a terminal; on a pipe every tenth line is printed."""
    state = {"n": 0}

    def say(text):
        line = "demo model: %s (%.0f s)" % (text, time.monotonic() - start)
        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K" + line)
        elif state["n"] % 10 == 0 or not text.startswith("layer"):
            sys.stderr.write(line + "\n")
        state["n"] += 1
        sys.stderr.flush()
    return say


def main():
    ap = argparse.ArgumentParser(description="Make the demo model (see the head of this file).")
    ap.add_argument("out_dir")
    ap.add_argument("--cache", help="folder of the downloaded source (default: OUT_DIR/../cache)")
    ap.add_argument("--check", action="store_true", help="recompute the sums of a kept folder")
    ap.add_argument("--noise", type=float, default=NOISE, help="strength of the perturbation "
                    "(default %(default)s; 0 gives the dense model)")
    args = ap.parse_args()
    out_dir = os.path.abspath(args.out_dir)
    cache = args.cache or os.path.join(os.path.dirname(out_dir), "cache")
    start = time.monotonic()
    marker, verb = complete(out_dir, args.noise, args.check), "kept"
    if marker is None:
        try:
            marker, verb = make(out_dir, cache, args.noise, progress(start)), "made"
        except demo_source.SourceError as e:
            print("\nmake_demo_model: cannot fetch the source model: %s" % e, file=sys.stderr)
            return 3
        except (GgufError, OSError, ValueError) as e:
            print("\nmake_demo_model: %s" % e, file=sys.stderr)
            return 1
        if sys.stderr.isatty():
            sys.stderr.write("\r\033[K")
    for name, row in marker["files"].items():
        if name.endswith(".safetensors"):
            print("%s  %s" % (row["sha256"], name))
    print("%s %s: %d files, %.2f GB, %.1f s" % (
        verb, args.out_dir, len(marker["files"]),
        sum(row["bytes"] for row in marker["files"].values()) / 1e9, time.monotonic() - start))
    return 0


if __name__ == "__main__":
    sys.exit(main())
