"""Goldens: what transformers computes in f32 from the stored weights of a fixture.

A case is refused when rounding could decide it: a router margin under the fixture's min_margin at any
position, or a gap between the two best logits under MIN_TOP1_GAP at any position whose choice is
part of the golden.
"""

import hashlib
import itertools
import json
import pathlib
import platform
import re
import tempfile

import numpy
import safetensors
import tokenizers
import torch
import transformers

from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextDynamicCache

from . import models, train

NEW_TOKENS = 64
MIN_TOP1_GAP = 1e-2
SWAP_WITHIN = 32
KV_CASE = "passage"  # whose keys and values are kept, of every KV_STEP-th position of its prompt
KV_STEP = 5
# name, about how many ids, first verse tried
PROMPTS = (("short", None, 0), ("line", 20, 60), ("passage", 60, 180))


@torch.no_grad()
def forward(model, ids):
    """(logits [positions, vocab], smallest router margin over layers and positions)"""
    logits, choices = models.forward(model, torch.tensor([ids]))
    return logits[0], train.margins(choices, model.config).min().item()


@torch.no_grad()
def greedy(model, prompt, count):
    """Greedy ids, without a cache: every step recomputes the whole sequence."""
    ids = list(prompt)
    for _ in range(count):
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


def try_case(model, fixture, prompt, stop_ids):
    """The case's numbers, or (None, reason)."""
    _, margin = forward(model, prompt)
    if margin < fixture.min_margin:
        return None, f"router margin {margin:.1e} in the prompt"
    new = greedy(model, prompt, NEW_TOKENS)
    if set(new) & set(stop_ids):
        return None, "it stops early"
    logits, margin = forward(model, prompt + new)
    if margin < fixture.min_margin:
        return None, f"router margin {margin:.1e}"
    best = logits[len(prompt) - 1 : -1].topk(2, -1)
    if best.indices[:, 0].tolist() != new:
        return None, "one forward and 64 forwards disagree"
    gap = (best.values[:, 0] - best.values[:, 1]).min().item()
    if gap < MIN_TOP1_GAP:
        return None, f"top-1 gap {gap:.1e}"
    return {"ids": new, "logits": logits.numpy(), "gap": gap, "margin": margin}, None


def candidates(tok, verses, length, start):
    """Prompts of about `length` ids: verse starts, cut after a whole number of ids."""
    if length is None:
        yield list(train.SHORT_PROMPT)
        return
    for i in [*range(start, len(verses)), *range(start)]:
        ids = tok.encode("\n".join(verses[i : i + 8])).ids
        for cut in (length, length + 1, length - 1):
            yield ids[:cut]


def find_cases(model, fixture, tok, verses, stop_ids, prompts=PROMPTS):
    cases = []
    for name, length, start in prompts:
        refused = {}
        for prompt in candidates(tok, verses, length, start):
            case, reason = try_case(model, fixture, prompt, stop_ids)
            if case:
                text = tok.decode(prompt, skip_special_tokens=False)
                same = tok.encode(text).ids == prompt
                cases.append(
                    {"name": name, "prompt": prompt, "text": text if same else None, **case}
                )
                break
            reason = reason.split(" in the prompt")[0].rstrip("0123456789.e-")
            refused[reason] = refused.get(reason, 0) + 1
        else:
            raise SystemExit(f"{fixture.name}: no acceptable prompt for case {name}: {refused}")
        print(
            f"{fixture.name}: case {name}: router margin {case['margin']:.1e}, "
            f"top-1 gap {case['gap']:.1e}; refused before it: {refused}",
            flush=True,
        )
    return cases


@torch.no_grad()
def usage(model, cases):
    """Choices per expert over all cases: {layer: [count]}."""
    k = models.top_k(model.config)
    total = None
    for c in cases:
        _, choices = models.forward(model, torch.tensor([c["prompt"] + c["ids"]]))
        counts = [
            torch.bincount(x.rank.topk(k, -1).indices.flatten(), minlength=x.rank.shape[-1])
            for x in choices
        ]
        total = counts if total is None else [a + b for a, b in zip(total, counts)]
    return dict(zip(models.sparse_layers(model.config), [t.tolist() for t in total]))


@torch.no_grad()
def first_difference(model, case):
    """Where greedy decoding leaves the case's ids within SWAP_WITHIN; None: nowhere.

    Up to the first difference the sequences are equal, so one forward over the case finds it.
    """
    logits, _ = forward(model, case["prompt"] + case["ids"][:SWAP_WITHIN])
    chosen = logits[len(case["prompt"]) - 1 : -1].argmax(-1).tolist()
    return next((i for i, (x, y) in enumerate(zip(chosen, case["ids"])) if x != y), None)


@torch.no_grad()
def find_swap(model, fixture, cases, choices):
    """The pair of experts of one layer whose exchange changes most cases, and these soonest."""
    names = [c["name"] for c in cases]
    best = None
    for layer, counts in choices.items():
        chosen = [e for e, n in enumerate(counts) if n > 0]
        for pair in itertools.combinations(chosen, 2):
            models.exchange(model, layer, *pair)
            first = [first_difference(model, c) for c in cases]
            models.exchange(model, layer, *pair)
            seen = [x for x in first if x is not None]
            rank = (len(cases) - len(seen), sum(seen))
            if seen and (best is None or rank < best[0]):
                best = (rank, layer, list(pair), dict(zip(names, first)))
    if best is None:
        raise SystemExit(f"{fixture.name}: no pair of experts is seen within {SWAP_WITHIN} ids")
    _, layer, pair, first = best
    return {"layer": layer, "experts": pair, "within": SWAP_WITHIN, "first_difference": first}


def double_deviation(model, cases):
    """max|f32 - f64| / max|f64| over the positions of all cases: the oracle's own noise."""
    if model.config.model_type in (*models.HOOKED, "llama4_text", "dbrx", "qwen3_next"):
        return None  # its router, its rotation or its state is in f32 whatever the model is in
    wide = model.double()
    worst = 0.0
    for c in cases:
        ref, _ = forward(wide, c["prompt"] + c["ids"])
        ref = ref.numpy()
        worst = max(worst, float((abs(ref - c["logits"]).max(-1) / abs(ref).max(-1)).max()))
    model.float()
    return worst


@torch.no_grad()
def write_cache(model, prompt, folder):
    """cache.npy: what transformers' cache holds after the prompt, [positions][layers][K, V][heads][dim]."""
    if model.config.model_type == "qwen3_next":
        return write_states(model, prompt, folder)
    cache = transformers.DynamicCache()  # without windows: every position stays
    latents, hooks = [], []
    for layer in model.model.layers:
        if hasattr(layer.self_attn, "kv_a_layernorm"):
            norm = layer.self_attn.kv_a_layernorm
            hooks.append(norm.register_forward_hook(lambda m, x, y: latents.append(y[0])))
    model(input_ids=torch.tensor([prompt]), past_key_values=cache, use_cache=True)
    for hook in hooks:
        hook.remove()
    if latents:
        return write_latents(model, latents, cache, folder)
    write_pairs([(layer.keys, layer.values) for layer in cache.layers], folder)


def write_pairs(pairs, folder):
    pairs = [torch.stack([keys[0], values[0]]) for keys, values in pairs]
    every = torch.stack(pairs).permute(3, 0, 1, 2, 4)[::KV_STEP]
    numpy.save(folder / "cache.npy", numpy.ascontiguousarray(every.numpy().astype("<f4")))


def write_states(model, prompt, folder):
    """cache.npy of the blocks of full attention alone. Of those of linear attention, what is there after the prompt:
    state.npy [layers][value heads][key dim][value dim], and conv.npy [layers][channels][taps], the last inputs of the
    convolution, the newest last (of which the next position has all but the first)."""
    cache = Qwen3NextDynamicCache(model.config)
    model(input_ids=torch.tensor([prompt]), past_key_values=cache, use_cache=True)
    write_pairs([cache[i] for i in cache.transformer_layers], folder)
    for name, parts in (("state", cache.recurrent_states), ("conv", cache.conv_states)):
        every = torch.stack([x[0] for x in parts if x is not None])
        numpy.save(folder / f"{name}.npy", numpy.ascontiguousarray(every.numpy().astype("<f4")))


def write_latents(model, latents, cache, folder):
    """cache.npy of latents, [positions][layers][1][1][latent, rotated key in halves]; transformers caches
    what is expanded from them."""
    turn = model.config.qk_rope_head_dim
    rows = []
    for latent, layer in zip(latents, cache.layers):
        key = layer.keys[0, 0, :, -turn:]
        if model.config.model_type == "deepseek_v2":
            key = torch.cat([key[:, 0::2], key[:, 1::2]], -1)
        rows.append(torch.cat([latent, key], -1))
    every = torch.stack(rows, 1)[::KV_STEP, :, None, None]
    numpy.save(folder / "cache.npy", numpy.ascontiguousarray(every.numpy().astype("<f4")))


def stored_cache(folder):
    """cache.npy again, from the stored weights and the prompt that golden.json has."""
    cases = json.loads((folder / "golden.json").read_text(encoding="utf-8"))["cases"]
    prompt = next(c["prompt_ids"] for c in cases if c["name"] == KV_CASE)
    write_cache(models.load(folder), prompt, folder)


@torch.no_grad()
def write_variant(variant, tok, verses, corpus_sha256, root):
    """Goldens of a fixture's weights under another configuration; the weights stay where they are."""
    source, folder = root / variant.source, root / variant.name
    config = json.loads((source / "config.json").read_text()) | variant.config
    stop_ids = json.loads((source / "generation_config.json").read_text())["eos_token_id"]
    with tempfile.TemporaryDirectory() as tmp:
        made = pathlib.Path(tmp)
        for path in source.glob("*.safetensors*"):
            (made / path.name).symlink_to(path.resolve())
        (made / "config.json").write_text(json.dumps(config))
        model = models.load(made)
    cases = find_cases(model, variant, tok, verses, stop_ids, PROMPTS[1:2])
    folder.mkdir(exist_ok=True)
    for c in cases:
        numpy.save(folder / f"logits_{c['name']}.npy", c["logits"].astype("<f4"))
    doc = {
        "name": variant.name,
        "weights_of": variant.source,
        "config": variant.config,
        "provenance": {
            "command": f"python tools/py/make_fixtures.py --only {variant.name}",
            **versions(corpus_sha256),
        },
        "stop_ids": stop_ids,
        "least_router_margin": variant.min_margin,
        "cases": [case_document(c, tok) for c in cases],
    }
    text = json.dumps(doc, ensure_ascii=False, indent=1)
    (folder / "golden.json").write_text(compact(text) + "\n", encoding="utf-8")


def versions(corpus_sha256):
    return {
        "corpus": "tests/golden/corpus.txt",
        "corpus_sha256": corpus_sha256,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "safetensors": safetensors.__version__,
        "tokenizers": tokenizers.__version__,
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
    }


def case_document(c, tok):
    return {
        "name": c["name"],
        "prompt_text": c["text"],
        "prompt_ids": c["prompt"],
        "greedy_ids": c["ids"],
        "greedy_text": tok.decode(c["ids"], skip_special_tokens=True),
        "logits": f"logits_{c['name']}.npy",
        "min_top1_gap": c["gap"],
        "min_router_margin": c["margin"],
    }


def find_stop(model, fixture, tok, verses, stop_ids):
    """A chat prompt whose greedy answer ends by itself, decisively, within NEW_TOKENS ids."""
    if not fixture.chat:
        return None
    for v in verses:
        text, _ = train.chat(fixture.kind, v)
        prompt = tok.encode(text).ids
        if len(prompt) > 60:
            continue
        ids = greedy(model, prompt, NEW_TOKENS)
        end = next((i for i, t in enumerate(ids) if t in stop_ids), None)
        if end is None or end < 8:
            continue
        ids = ids[: end + 1]
        logits, margin = forward(model, prompt + ids)
        best = logits[len(prompt) - 1 : -1].topk(2, -1).values
        gap = (best[:, 0] - best[:, 1]).min().item()
        if margin >= fixture.min_margin and gap >= MIN_TOP1_GAP:
            return {
                "prompt_text": text,
                "prompt_ids": prompt,
                "greedy_ids": ids,
                "greedy_text": tok.decode(ids[:-1], skip_special_tokens=False),
                "min_top1_gap": gap,
                "min_router_margin": margin,
            }
    raise SystemExit(f"{fixture.name}: no chat prompt ends decisively")


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def note_files(folder):
    """The digests again of the weights as they are, in a golden.json that is there."""
    path = folder / "golden.json"
    doc = json.loads(path.read_text(encoding="utf-8"))
    doc["provenance"]["files_sha256"] = {p.name: sha256(p) for p in sorted(folder.glob("*.safetensors"))}
    text = json.dumps(doc, ensure_ascii=False, indent=1)
    path.write_text(compact(text) + "\n", encoding="utf-8")


def write(fixture, tok, verses, corpus_sha256, folder):
    model = models.load(folder)
    stop_ids = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    cases = find_cases(model, fixture, tok, verses, stop_ids)
    used = usage(model, cases)
    stop = find_stop(model, fixture, tok, verses, stop_ids)
    swap = find_swap(model, fixture, cases, used)
    print(f"{fixture.name}: swap {swap}", flush=True)
    for old in folder.glob("logits_*.npy"):
        old.unlink()
    write_cache(model, next(c["prompt"] for c in cases if c["name"] == KV_CASE), folder)
    for c in cases:
        numpy.save(folder / f"logits_{c['name']}.npy", c["logits"].astype("<f4"))
    doc = {
        "name": fixture.name,
        "provenance": {
            "command": f"python tools/py/make_fixtures.py --only {fixture.name}",
            "seed": fixture.seed,
            "steps": fixture.steps,
            **versions(corpus_sha256),
            "files_sha256": {p.name: sha256(p) for p in sorted(folder.glob("*.safetensors"))},
        },
        "stop_ids": stop_ids,
        "least_router_margin": fixture.min_margin,
        "f32_against_f64": double_deviation(model, cases),
        "router_choices": {str(k): v for k, v in used.items()},
        "cases": [case_document(c, tok) for c in cases],
        "stop_case": stop,
        "swap_test": swap,
    }
    text = json.dumps(doc, ensure_ascii=False, indent=1)
    (folder / "golden.json").write_text(compact(text) + "\n", encoding="utf-8")


def compact(text):
    """Lists of numbers on one line."""
    return re.sub(
        r"\[\s+((?:-?\d+,\s+)*-?\d+)\s+\]",
        lambda m: "[" + re.sub(r"\s+", " ", m.group(1)) + "]",
        text,
    )
