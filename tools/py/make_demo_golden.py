#!/usr/bin/env python3
"""The demo model's golden, from transformers in float32; and the two checks of its recipe.

    make_demo_golden.py golden MODEL_DIR [--out tests/golden/demo]
    make_demo_golden.py dense --source GGUF      with NOISE = 0 the Mixtral equals the dense Llama
    make_demo_golden.py router MODEL_DIR --source GGUF   search ROUTER_SEEDS of make_demo_model.py

MODEL_DIR comes from make_demo_model.py; GGUF is the file it keeps in its cache folder. Needs
torch, transformers and tokenizers (the engine and `make test` need none of them).

`golden` writes
    golden.json       sums of the model's files, and per case: prompt, prompt_ids, ids (greedy, up
                      to 64, ending with the end token if it comes), text, the smallest gap between
                      the two best logits, and the smallest router margin (2nd minus 3rd of the
                      logits) over all layers and positions; expert loads; the test of the test,
                      for the first SWAP_CASES: ids change when two experts of a layer are swapped
    CASE.logits.npy   float32 [prompt positions, vocab / LOGIT_STRIDE]: every LOGIT_STRIDE-th logit
                      of every prompt position; golden.json has each position's max |logit|
    tokenizer.jsonl   one {"text", "ids"} a line, from `tokenizers`, decoding back to text exactly
A case whose gap is below MIN_GAP or whose margin is below MIN_MARGIN is left out, and said so:
rounding alone could change its ids.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, MixtralForCausalLM

import demo_cases
import make_demo_model
from demo_source import DenseModel
from hf_write import bf16_from_f32, json_bytes, write_file

NEW_TOKENS = 64
MIN_GAP = 1e-2
MIN_MARGIN = 5e-5
LOGIT_STRIDE = 64
SWAP_WITHIN = 32
SWAP_CASES = 3
ROUTER_TRIALS = 2000


# ------------------------------------------------------------------ models

def load_mixtral(folder):
    model = MixtralForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def load_dense(source):
    """The dense model in transformers' Llama, its weights rounded to bf16 as the demo's are."""
    dense = DenseModel(source)
    known = make_demo_model.config(dense)
    keys = set(LlamaConfig().to_dict()) & set(known) - {"architectures", "model_type"}
    model = LlamaForCausalLM(LlamaConfig(**{k: known[k] for k in keys})).eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            bits = bf16_from_f32(dense.load(name)).astype(np.uint32) << 16
            parameter.copy_(torch.from_numpy(bits.view(np.float32)))
    return dense, model


class RouterInputs:
    """Collects what every layer's router sees: per layer a list of [rows, hidden] tensors."""

    def __init__(self, model):
        self.rows = [[] for _ in model.model.layers]
        self.hooks = [layer.post_attention_layernorm.register_forward_hook(self._hook(i))
                      for i, layer in enumerate(model.model.layers)]

    def _hook(self, i):
        return lambda _module, _args, out: self.rows[i].append(out[0].detach().clone())

    def take(self):
        out = [torch.cat(rows) for rows in self.rows]
        for rows in self.rows:
            rows.clear()
        return out

    def close(self):
        for hook in self.hooks:
            hook.remove()


@torch.no_grad()
def greedy(model, prompt_ids, eos, count=NEW_TOKENS):
    """Greedy ids up to and including `eos`, the smallest top-1 gap, and the prompt's logits."""
    step, past, ids, gaps, first = torch.tensor([prompt_ids]), None, [], [], None
    while len(ids) < count and (not ids or ids[-1] != eos):
        out = model(step, past_key_values=past, use_cache=True)
        past = out.past_key_values
        first = out.logits[0] if first is None else first
        best, index = out.logits[0, -1].topk(2)
        gaps.append(float(best[0] - best[1]))
        ids.append(int(index[0]))
        step = index[:1][None]
    return ids, min(gaps), first


# ------------------------------------------------------------------ router search

def calibration_rows(model, folder):
    """Router inputs of the chat cases with the model's own answers, and of plain prose."""
    tok = AutoTokenizer.from_pretrained(folder)
    seen = RouterInputs(model)
    for messages in demo_cases.CASES.values():
        greedy(model, prompt_of(tok, messages)[1], tok.eos_token_id)
    with torch.no_grad():
        for text in demo_cases.CALIBRATION:
            model(torch.tensor([tok(text)["input_ids"]]))
    rows = seen.take()
    seen.close()
    return rows


def load_of(rows, gate):
    """How many rows each expert gets, and the smallest margin of 2nd over 3rd logit."""
    logits = rows @ gate.T
    best, index = logits.topk(make_demo_model.TOP_K + 1)
    counts = torch.bincount(index[:, :make_demo_model.TOP_K].flatten(), minlength=gate.shape[0])
    return counts, float((best[:, -2] - best[:, -1]).min())


def search_router(source, folder):
    """Print the seed of each layer that spreads the calibration rows most evenly."""
    dense, model = load_dense(source)
    seeds = []
    for layer, rows in enumerate(calibration_rows(model, folder)):
        norm = dense.load("model.layers.%d.post_attention_layernorm.weight" % layer)
        rows, best = rows.numpy(), (float("inf"), 0)
        for seed in range(ROUTER_TRIALS):
            logits = rows @ make_demo_model.router_matrix(norm, layer, seed).T
            top = np.argpartition(logits, -make_demo_model.TOP_K, axis=1)
            counts = np.bincount(top[:, -make_demo_model.TOP_K:].ravel(), minlength=logits.shape[1])
            best = min(best, (float(counts.std() / counts.mean()), seed))
        seeds.append(best[1])
        print("layer %d: seed %d, load varies by %.2f" % (layer, best[1], best[0]), file=sys.stderr)
    print("ROUTER_SEEDS = %s" % seeds)


# ------------------------------------------------------------------ dense check

def check_dense(source):
    """Compare all logits of the cases between the dense Llama and the Mixtral without noise."""
    _, dense = load_dense(source)
    worst = 0.0
    with tempfile.TemporaryDirectory() as scratch:
        folder = os.path.join(scratch, "zero")
        tool = os.path.join(os.path.dirname(os.path.abspath(__file__)), "make_demo_model.py")
        subprocess.run([sys.executable, tool, folder, "--noise", "0", "--cache",
                        os.path.dirname(os.path.abspath(source))], check=True)
        mixtral = load_mixtral(folder)
        tok = AutoTokenizer.from_pretrained(folder)
        for name, messages in demo_cases.CASES.items():
            ids = torch.tensor([prompt_of(tok, messages)[1]])
            with torch.no_grad():
                a, b = dense(ids).logits, mixtral(ids).logits
            off = float((a - b).abs().max() / a.abs().max())
            worst = max(worst, off)
            print("%-8s max|d|/max|ref| = %.2e" % (name, off))
    print("worst %.2e" % worst)
    return 0 if worst < 2e-4 else 1


# ------------------------------------------------------------------ golden

def prompt_of(tok, messages):
    chat = [{"role": role, "content": text} for role, text in messages]
    text = tok.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return text, tok(text, add_special_tokens=False)["input_ids"]


def swap_changes(model, case, eos):
    """First (layer, a, b, at) with which swapping experts a and b of a layer changes the ids."""
    want = case["ids"][:SWAP_WITHIN]
    for layer in range(0, len(model.model.layers), 7):
        experts = model.model.layers[layer].block_sparse_moe.experts
        experts[0], experts[1] = experts[1], experts[0]
        have = greedy(model, case["prompt_ids"], eos, SWAP_WITHIN)[0]
        experts[0], experts[1] = experts[1], experts[0]
        if have != want:
            at = next(i for i, (x, y) in enumerate(zip(have + [-1], want + [-1])) if x != y)
            return {"layer": layer, "experts": [0, 1], "first_changed": at}
    return None


def run_case(model, seen, tok, name, messages, out_dir):
    text, prompt_ids = prompt_of(tok, messages)
    ids, gap, logits = greedy(model, prompt_ids, tok.eos_token_id)
    gates = [layer.block_sparse_moe.gate.weight.detach() for layer in model.model.layers]
    loads = [load_of(rows, gate) for rows, gate in zip(seen.take(), gates)]
    case = {"name": name, "messages": [{"role": r, "content": t} for r, t in messages],
            "prompt": text, "prompt_ids": prompt_ids, "ids": ids,
            "text": tok.decode(ids, skip_special_tokens=True),
            "ended": ids[-1] == tok.eos_token_id, "min_gap": round(gap, 5),
            "min_router_margin": round(min(m for _, m in loads), 7),
            "max_abs_logit": [round(float(x), 4) for x in logits.abs().amax(dim=1)],
            "logits": name + ".logits.npy", "logit_stride": LOGIT_STRIDE}
    print("%-8s %2d ids, gap %.4f, margin %.1e: %s" % (
        name, len(ids), gap, case["min_router_margin"], case["text"]), flush=True)
    if gap < MIN_GAP or case["min_router_margin"] < MIN_MARGIN:
        print("         left out: gap below %g or margin below %g" % (MIN_GAP, MIN_MARGIN))
        return None, loads
    np.save(os.path.join(out_dir, case["logits"]), logits[:, ::LOGIT_STRIDE].numpy())
    return case, loads


def write_tokenizer_lines(folder, out_dir):
    tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    for text, want in demo_cases.KNOWN_IDS.items():
        have = tok.encode(text, add_special_tokens=False).ids
        if have != want:
            raise ValueError("tokenizer: %r gives %s, known is %s" % (text, have, want))
    rows = []
    for text in demo_cases.lines():
        ids = tok.encode(text, add_special_tokens=False).ids
        back = tok.decode(ids, skip_special_tokens=False)
        if back != text:
            raise ValueError("tokenizer: %r comes back as %r" % (text, back))
        rows.append(json.dumps({"text": text, "ids": ids}) + "\n")
    write_file(out_dir, "tokenizer.jsonl", "".join(rows).encode())
    return len(rows)


def load_summary(total):
    """Share of the mean each expert gets: worst layers, and the counts of every layer."""
    counts = np.array(total)
    share = counts / counts.mean(axis=1, keepdims=True)
    return {"max_over_mean": round(float(share.max()), 3),
            "mean_of_max_over_mean": round(float(share.max(axis=1).mean()), 3),
            "min_over_mean": round(float(share.min()), 3), "counts": counts.tolist()}


def make_golden(folder, out_dir):
    os.makedirs(out_dir, exist_ok=True)
    for name in os.listdir(out_dir):
        if name.endswith(".logits.npy"):
            os.remove(os.path.join(out_dir, name))
    marker = make_demo_model.complete(folder, make_demo_model.NOISE, check=True)
    if marker is None:
        print("make_demo_golden: %s is not a complete demo model of this recipe" % folder,
              file=sys.stderr)
        return 1
    tok = AutoTokenizer.from_pretrained(folder)
    model = load_mixtral(folder)
    seen = RouterInputs(model)
    cases, total, swaps = [], None, {}
    for name, messages in demo_cases.CASES.items():
        case, loads = run_case(model, seen, tok, name, messages, out_dir)
        counts = [c.numpy() for c, _ in loads]
        total = counts if total is None else [a + b for a, b in zip(total, counts)]
        if case:
            cases.append(case)
    seen.close()
    for case in cases[:SWAP_CASES]:
        case["swap"] = swap_changes(model, case, tok.eos_token_id)
    n_lines = write_tokenizer_lines(folder, out_dir)
    golden = {
        "command": "tools/py/make_demo_golden.py golden MODEL_DIR",
        "oracle": {"transformers": transformers.__version__,
                   "torch": torch.__version__.split("+")[0],
                   "tokenizers": tokenizers.__version__, "dtype": "float32"},
        "model": marker, "eos_token_id": tok.eos_token_id, "tokenizer_lines": n_lines,
        "expert_load": load_summary(total), "cases": cases}
    write_file(out_dir, "golden.json", json_bytes(golden))
    print("%d cases, %d lines, load %s" % (len(cases), n_lines, {
        k: v for k, v in golden["expert_load"].items() if k != "counts"}))
    print("swap:", {c["name"]: c["swap"] for c in cases[:SWAP_CASES]})
    return 0


def main():
    ap = argparse.ArgumentParser(description="Golden of the demo model (see the file's head).")
    sub = ap.add_subparsers(dest="verb", required=True)
    golden = sub.add_parser("golden")
    golden.add_argument("model_dir")
    golden.add_argument("--out", default="tests/golden/demo")
    dense = sub.add_parser("dense")
    dense.add_argument("--source", required=True)
    router = sub.add_parser("router")
    router.add_argument("model_dir", help="any demo folder, for its tokenizer")
    router.add_argument("--source", required=True)
    ap.add_argument("--threads", type=int, default=2)
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    if args.verb == "dense":
        return check_dense(args.source)
    if args.verb == "router":
        return search_router(args.source, args.model_dir)
    return make_golden(args.model_dir, args.out)


if __name__ == "__main__":
    sys.exit(main())
