"""Perplexity of a text, here and in llama.cpp, on one file. Only the standard library."""
import json
import os
import pathlib
import re
import tempfile

from window import Failed, Run

CORPUS = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "corpus.txt"
CHUNK = 512


def ours(program, model, text):
    """The mean over the second half of each chunk, as llama-perplexity has it."""
    run = Run([program, "logits", model, "--perplexity", text, "--threads", "2", "--schedule", "ep", "--json"])
    return json.loads(run.out)["perplexity"], run


def theirs(llama, model, text):
    run = Run([llama.path("llama-perplexity"), "-m", model, "-f", text, "-c", str(CHUNK), "-b", str(CHUNK),
               "-t", "2"])
    found = re.search(r"Final estimate: PPL = ([0-9.]+) \+/- ([0-9.]+)", run.out + run.err)
    if not found:
        raise Failed("llama-perplexity gave no figure")
    return float(found[1]), run


def measure(program, llama, model, job):
    """On the first job["characters"] of the corpus, cut at a line's end."""
    with tempfile.NamedTemporaryFile("w", prefix="corpus-", suffix=".txt") as f:
        f.write(CORPUS.read_text()[:job["characters"]].rpartition("\n")[0] + "\n")
        f.flush()
        value, run = ours(program, model, f.name)
        out = {"sluice": value, "command": [" ".join(run.argv)]}
        if llama and os.access(llama.path("llama-perplexity"), os.X_OK):
            out["llama"], run = theirs(llama, model, f.name)
            out["version"] = llama.version()
            out["command"].append(" ".join(run.argv))
    return out
