#!/usr/bin/env python3
"""What transformers gives the endings of tests/scores/endings.jsonl, in float32: tests/scores/golden.json.

    make_scores_golden.py MODEL_DIR [--sluice build/sluice] [--out tests/scores/golden.json] [--only bf16,q8_0] [--threads 2]

MODEL_DIR is the demo model (make_demo_model.py). NUMERICS has a row for each way of storing weights that users get by
default: the folder itself, or the file that `sluice convert` makes of it, whose tensors gguf-py (PyPI) dequantises. Per
numeric the golden has, for each item and ending, the sum of the log-probabilities of the ending's tokens:

    plain     those weights, activations in float32: what the numeric is held to
    rounded   the same, keys and values rounded to f16 as KV is by default, and the input of every product with weights in blocks
              rounded to 8 bits as docs/numbers.md says: how far the numeric is expected to lie from plain (null where nothing rounds)

Needs torch, transformers and gguf (tools/py/requirements-oracle.txt): seven passes, minutes on two calm cores."""
import argparse
import contextlib
import hashlib
import importlib.metadata
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import gguf
import gguf_make
import numpy as np
import torch
import transformers
from transformers import AutoTokenizer, MixtralForCausalLM
from transformers.models.mixtral import modeling_mixtral

import make_demo_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCORES = ROOT / "tests" / "scores"
# Name of a numeric -> the type that `sluice convert` is asked for (None: the folder as it is), and that of KV (None: the default, f16).
NUMERICS = {"bf16": (None, None), "q8_0": ("q8_0", None), "q4_k": ("q4_k", None), "bf16-kv-f32": (None, "f32")}
ITEMS_AT_ONCE = 16
# Values that share a scale of activations, by the type of the weights they meet (docs/numbers.md, products of integers).
ROUNDED_IN = {"Q8_0": 32, "Q4_0": 32, "Q4_K": 256, "Q5_K": 256, "Q6_K": 256}
FAR = {"Q8_0": 0.01, "Q4_0": 0.15, "Q4_K": 0.15}  # root mean square of what a type may change, over that of the weights


# ------------------------------------------------------------------ items

def split(tok, context, ending):
    """(ids of the context, ids of the ending): the ending begins where the context's own ids end, as in lm-eval."""
    head = tok(context, add_special_tokens=False)["input_ids"]
    whole = tok(context + " " + ending, add_special_tokens=False)["input_ids"]
    if whole[:len(head)] != head:
        raise ValueError(f"{context!r}: its ids change before {ending!r}")
    return head, whole[len(head):]


def load_items(tok):
    """Per item (ids of the context, [ids of an ending])."""
    out = []
    for line in (SCORES / "endings.jsonl").read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        pairs = [split(tok, item["context"], e) for e in item["endings"]]
        out.append((pairs[0][0], [ending for _, ending in pairs]))
    return out


def lay_out(items):
    """Rows of a batch, an item each: the context once, then its endings one after another, each of which sees the context
    and itself alone and stands right behind the context. (ids, positions, mask [rows, 1, longest, longest])"""
    longest = max(len(c) + sum(map(len, es)) for c, es in items)
    ids = torch.zeros(len(items), longest, dtype=torch.long)
    positions = torch.zeros(len(items), longest, dtype=torch.long)
    sees = torch.eye(longest, dtype=torch.bool).repeat(len(items), 1, 1)  # what pads a row sees itself
    for row, (context, endings) in enumerate(items):
        at = n = len(context)
        ids[row, :n], positions[row, :n] = torch.tensor(context), torch.arange(n)
        sees[row, :n, :n] = torch.ones(n, n).tril().bool()
        for ending in endings:
            k = len(ending)
            ids[row, at:at + k], positions[row, at:at + k] = torch.tensor(ending), torch.arange(n, n + k)
            sees[row, at:at + k, :n] = True
            sees[row, at:at + k, at:at + k] = torch.ones(k, k).tril().bool()
            at += k
    return ids, positions, torch.where(sees, 0.0, torch.finfo(torch.float32).min)[:, None]


@torch.no_grad()
def score(model, items):
    """Per item and ending the sum of log-probabilities."""
    out = []
    for begin in range(0, len(items), ITEMS_AT_ONCE):
        batch = items[begin:begin + ITEMS_AT_ONCE]
        ids, positions, mask = lay_out(batch)
        logits = model(ids, position_ids=positions, attention_mask=mask, use_cache=False).logits
        for row, (context, endings) in enumerate(batch):
            at, sums = len(context), []
            for ending in endings:
                before = [len(context) - 1, *range(at, at + len(ending) - 1)]
                of = torch.log_softmax(logits[row, before].double(), -1)
                sums.append(round(float(of[range(len(ending)), ending].sum()), 6))
                at += len(ending)
            out.append(sums)
    return out


# ------------------------------------------------------------------ weights in blocks

def unpaired(w, heads):
    """Rows 2i and 2i + 1 of each head become i and i + half: the opposite of gguf_make.paired."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def stored_as(name):
    """(the tensor of the file that has this parameter of Mixtral, the expert, or None)"""
    outside = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in outside:
        return outside[name], None
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    if ".experts." in rest:
        expert, part, _ = rest.split(".experts.")[1].split(".")
        return f"blk.{layer}.ffn_{gguf_make.ARCHS['MixtralForCausalLM'][2][part]}_exps.weight", int(expert)
    return f"blk.{layer}.{gguf_make.NAMES[rest]}", None


def values_of(tensor, expert, name, config):
    """float32 values of a parameter in a tensor of the file."""
    raw = tensor.data if expert is None else tensor.data[expert]
    w = gguf.quants.dequantize(raw, tensor.tensor_type)
    if ".q_proj." in name:
        w = unpaired(w, config.num_attention_heads)
    if ".k_proj." in name:
        w = unpaired(w, config.num_key_value_heads)
    return torch.from_numpy(np.array(w, np.float32))


@torch.no_grad()
def take_weights(model, path):
    """Puts the file's values into the model; {name of a module: type of its weights}."""
    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
    types = {}
    for name, parameter in model.named_parameters():
        place, expert = stored_as(name)
        have, kind = values_of(tensors[place], expert, name, model.config), tensors[place].tensor_type.name
        off = float((have - parameter).square().mean().sqrt() / parameter.square().mean().sqrt())
        if have.shape != parameter.shape or off > FAR.get(kind, 0):
            raise ValueError(f"{path}: {place} ({kind}) lies {off:.3g} from {name}: not the same weights")
        parameter.copy_(have)
        types[name.removesuffix(".weight")] = kind
    types["lm_head"] = types["model.embed_tokens"]  # tied
    return types


def rounded(x, block):
    """x in codes of 8 bits, as docs/numbers.md says, and back."""
    parts = x.reshape(*x.shape[:-1], -1, block)
    most = parts.abs().amax(-1, keepdim=True)
    codes = torch.round(parts * (127 / most.clamp_min(2.0 ** -100)))
    return (codes * (most / 127)).reshape(x.shape)


def round_inputs(model, types):
    """Rounds the inputs of every product with weights in blocks; handles that undo it, and how many there are by type."""
    handles, counts = [], {}
    for name, module in model.named_modules():
        kind = types.get(name)
        if isinstance(module, torch.nn.Linear) and kind in ROUNDED_IN:
            block = ROUNDED_IN[kind]
            handles.append(module.register_forward_pre_hook(lambda _, args, block=block: (rounded(args[0], block),)))
            counts[kind] = counts.get(kind, 0) + 1
    return handles, counts


@contextlib.contextmanager
def kv_in_f16(model):
    """Keys behind their rotation, and values, are rounded as they are kept."""
    rotate = modeling_mixtral.apply_rotary_pos_emb

    def rotated(*args, **more):
        q, k = rotate(*args, **more)
        return q, k.half().float()

    values = [layer.self_attn.v_proj.register_forward_hook(lambda _, args, out: out.half().float()) for layer in model.model.layers]
    modeling_mixtral.apply_rotary_pos_emb = rotated
    try:
        yield
    finally:
        modeling_mixtral.apply_rotary_pos_emb = rotate
        for hook in values:
            hook.remove()


# ------------------------------------------------------------------ golden

def run_numeric(model, items, numeric, folder, sluice):
    """The golden's entry of one numeric; the model has the folder's weights and is changed."""
    convert, kv = numeric
    if convert is None:
        plain = score(model, items)
        if kv:
            return {"convert": None, "kv": kv, "plain": plain, "rounded": None}
        with kv_in_f16(model):
            return {"convert": None, "kv": None, "plain": plain, "rounded": score(model, items)}
    with tempfile.TemporaryDirectory() as work:
        path = pathlib.Path(work) / "model.gguf"
        subprocess.run([sluice, "convert", folder, path, "--type", convert], check=True, stdout=subprocess.DEVNULL)
        with path.open("rb") as f:
            digest = hashlib.file_digest(f, "sha256").hexdigest()
        types = take_weights(model, path)
    plain = score(model, items)
    handles, counts = round_inputs(model, types)
    with kv_in_f16(model):
        entry = {"convert": convert, "kv": kv, "sha256": digest, "rounded_products": counts, "plain": plain, "rounded": score(model, items)}
    for handle in handles:
        handle.remove()
    return entry


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("folder", type=pathlib.Path)
    ap.add_argument("--sluice", type=pathlib.Path, default=ROOT / "build" / "sluice")
    ap.add_argument("--out", type=pathlib.Path, default=SCORES / "golden.json")
    ap.add_argument("--only", default=",".join(NUMERICS), help="numerics to compute; the others stay as the file has them")
    ap.add_argument("--threads", type=int, default=2)
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    marker = make_demo_model.complete(args.folder, make_demo_model.NOISE, check=False)
    if marker is None:
        sys.exit(f"{args.folder} is not a complete demo model of this recipe")
    items = load_items(AutoTokenizer.from_pretrained(args.folder))
    old = json.loads(args.out.read_text())["numerics"] if args.out.exists() else {}
    golden = {"command": "tools/py/make_scores_golden.py MODEL_DIR",
              "oracle": {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
                         "gguf": importlib.metadata.version("gguf"), "dtype": "float32"},
              "items_sha256": hashlib.sha256((SCORES / "endings.jsonl").read_bytes()).hexdigest(),
              "model": marker, "tokens": sum(len(c) + len(e) for c, es in items for e in es), "numerics": {}}
    for name, convert in NUMERICS.items():
        if name in args.only.split(","):
            began = time.time()
            model = MixtralForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval()
            golden["numerics"][name] = run_numeric(model, items, convert, args.folder, args.sluice)
            print(f"{name}: {time.time() - began:.0f} s", flush=True)
        elif name in old:
            golden["numerics"][name] = old[name]
    text = json.dumps(golden, indent=1)
    args.out.write_text(re.sub(r"\[\s+([-\d.,\s]+?)\s+\]", lambda m: "[" + " ".join(m[1].split()) + "]", text) + "\n")


if __name__ == "__main__":
    main()
