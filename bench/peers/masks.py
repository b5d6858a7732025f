#!/usr/bin/env python3
"""Masks of structured output beside llguidance and xgrammar, in one run: the same schemas (bench/schemas.json), the same
tokenizer, the same texts. Needs a Python that has llguidance, xgrammar, apache-tvm-ffi and transformers, and a tokenizer.json; torch need not be there.

  bench/peers/masks.py TOKENIZER.json [--repeat 5] [--program build/bench_mask] [--peers llguidance,xgrammar] [--xgrammar-seconds 60] [--json FILE] [--schemas FILE]

Every repetition compiles each schema anew, with no cache of earlier ones, and asks for a mask before each token of each
example; xgrammar, whose compiler takes long, once, and a schema that takes longer than --xgrammar-seconds counts as refused. Times are of the processor, so that a busy machine does less to them; each is one thread. What a library refuses, or an example that it does not allow, is counted and left out of
its figures; `common` figures are over the cases that all of them take."""
import argparse
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def at(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def llguidance_of(tokenizer, cases, repeat):
    import llguidance
    import llguidance.hf
    import numpy

    tok = llguidance.hf.from_tokenizer(tokenizer)
    mask = numpy.zeros((tok.vocab_size + 31) // 32, dtype=numpy.int32)
    for case in [c for _ in range(repeat) for c in cases]:
        start = time.thread_time_ns()
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(case["schema"]), {"whitespace_flexible": True})
        matcher = llguidance.LLMatcher(tok, grammar)
        compiled, masks = (time.thread_time_ns() - start) / 1e3, []
        error = matcher.get_error()
        for ids in case["tokens"]:
            own = matcher.deep_copy()
            for i in ids:
                begin = time.thread_time_ns()
                own.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
                masks.append((time.thread_time_ns() - begin) / 1e3)
                if not mask[i // 32] >> (i % 32) & 1 or not own.consume_token(i):
                    error = error or f"token {i} is not allowed"
                    break
        yield case["name"], compiled, masks, error


def stand_in_for_torch():
    """xgrammar imports torch for the types of its functions on logits; masks work on numpy's arrays as well."""
    import types

    import numpy
    import tvm_ffi  # noqa: F401  before the stand-in, which it would take for torch

    torch = types.ModuleType("torch")
    torch.Tensor, torch.int32, torch.tensor = numpy.ndarray, numpy.int32, lambda x, dtype=None: numpy.array(x, dtype)
    torch.LongTensor = torch.FloatTensor = torch.Tensor
    sys.modules["torch"] = torch


def of_xgrammar(xgrammar, info, mask, case):
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    start = time.thread_time_ns()
    error, masks = "", []
    try:
        grammar = compiler.compile_json_schema(json.dumps(case["schema"]), any_whitespace=True, strict_mode=False)
    except RuntimeError as e:
        return 0, [], str(e).splitlines()[0]
    compiled = (time.thread_time_ns() - start) / 1e3
    for ids in case["tokens"]:
        matcher = xgrammar.GrammarMatcher(grammar)
        for i in ids:
            begin = time.thread_time_ns()
            matcher.fill_next_token_bitmask(mask)
            masks.append((time.thread_time_ns() - begin) / 1e3)
            if not matcher.accept_token(i):
                error = f"token {i} is not allowed"
                break
    return compiled, masks, error


def xgrammar_of(tokenizer, cases, seconds):
    """Each case in a process of its own, which is ended when it has taken so many seconds of the processor."""
    import multiprocessing
    import resource

    if importlib.util.find_spec("torch") is None:
        stand_in_for_torch()
    import numpy
    import xgrammar

    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
    mask = numpy.zeros((1, (info.vocab_size + 31) // 32), dtype=numpy.int32)
    here = multiprocessing.get_context("fork")

    def child(out, case):
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        out.send(of_xgrammar(xgrammar, info, mask, case))

    for case in cases:
        into, out = here.Pipe(duplex=False)
        own = here.Process(target=child, args=(out, case))
        own.start()
        out.close()
        try:
            row = into.recv()
        except EOFError:
            row = 0, [], f"did not end in {seconds} s"
        own.join()
        yield case["name"], *row


def ours(program, tokens, cases, repeat):
    with tempfile.TemporaryDirectory() as folder:
        words, list_of = pathlib.Path(folder, "tokens"), pathlib.Path(folder, "cases.json")
        words.write_text("".join(t.hex() + "\n" for t in tokens))
        list_of.write_text(json.dumps(cases))
        done = subprocess.run([program, words, list_of, str(repeat)], check=True, text=True, stdout=subprocess.PIPE)
    for line in done.stdout.splitlines():
        name, compiled, *masks = line.split("\t")
        yield name, float(compiled), [float(m.split(":")[0]) for m in masks], ""


def bytes_of(tokenizer):
    """The bytes of each id of a byte-level tokenizer; nothing for special ones."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in printable}
    table.update({chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in printable)})
    special = set(tokenizer.all_special_ids)
    names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    return [b"" if i in special else bytes(table[c] for c in name) for i, name in enumerate(names)]


def figures(rows, names):
    rows = [r for r in rows if r[0] in names]
    masks = [m for r in rows for m in r[2]]
    compiled = [r[1] for r in rows]
    return {"schemas": len(names), "masks": len(masks), "mean": statistics.fmean(masks), "p50": at(masks, 0.5), "p99": at(masks, 0.99),
            "p999": at(masks, 0.999), "most": max(masks), "compile_p50": at(compiled, 0.5), "compile_mean": statistics.fmean(compiled),
            "compile_most": max(compiled)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tokenizer")
    p.add_argument("--repeat", type=int, default=5)
    p.add_argument("--program", default=ROOT / "build" / "bench_mask")
    p.add_argument("--schemas", default=ROOT / "bench" / "schemas.json")
    p.add_argument("--peers", default="llguidance,xgrammar")
    p.add_argument("--xgrammar-seconds", type=int, default=60, help="of the processor for one schema")
    p.add_argument("--json")
    p.add_argument("--slow", action="store_true", help="the slowest masks of each")
    a = p.parse_args()
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=a.tokenizer, eos_token="<|endoftext|>")
    cases = [{**c, "tokens": [tokenizer.encode(json.dumps(e, ensure_ascii=False), add_special_tokens=False) for e in c["examples"]]}
             for c in json.loads(pathlib.Path(a.schemas).read_text())]
    runs = {"sluice": list(ours(a.program, bytes_of(tokenizer), cases, a.repeat))}
    if "llguidance" in a.peers:
        runs["llguidance"] = list(llguidance_of(tokenizer, cases, a.repeat))
    if "xgrammar" in a.peers:
        runs["xgrammar"] = list(xgrammar_of(tokenizer, cases, a.xgrammar_seconds))
    taken = {k: {r[0] for r in rows} - {r[0] for r in rows if r[3]} for k, rows in runs.items()}
    common = set.intersection(*taken.values())
    out = {"vocabulary": len(tokenizer), "common": {}, "own": {}}
    for k, rows in runs.items():
        out["own"][k], out["common"][k] = figures(rows, taken[k]), figures(rows, common)
        for name, why in sorted({(r[0], r[3]) for r in rows if r[3]}):
            print(f"{k}: {name}: {why[:150]}", file=sys.stderr)
        if a.slow:
            for us, name, i in sorted(((m, r[0], i) for r in rows for i, m in enumerate(r[2])), reverse=True)[:25]:
                print(f"{k}: {us:.1f} us, {name}, mask {i}", file=sys.stderr)
    print(f"{len(tokenizer)} tokens, {a.repeat} repetitions, microseconds")
    print("| | schemas | masks | mean | p50 | p99 | p99.9 | most | compile, median | mean | most |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for kind in ("own", "common"):
        for k, f in out[kind].items():
            print(f"| {k}{', common cases' if kind == 'common' else ''} | {f['schemas']} | {f['masks']} | {f['mean']:.1f} | {f['p50']:.1f} | {f['p99']:.1f} | "
                  f"{f['p999']:.1f} | {f['most']:.0f} | {f['compile_p50']:.0f} | {f['compile_mean']:.0f} | {f['compile_most']:.0f} |")
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
