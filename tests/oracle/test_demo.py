"""The demo model against transformers: greedy ids of whole chat answers, where the model has been made.

`make demo` makes it in models/smollm2-moe; without it these tests skip."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import sample  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
MODEL = ROOT / "models" / "smollm2-moe"
GOLDEN = json.loads((ROOT / "tests" / "golden" / "demo" / "golden.json").read_text())

TAKEN = (0, 2, 6)  # workers, a long answer, turns

pytestmark = pytest.mark.skipif(not (MODEL / "config.json").is_file(), reason="no demo model here")


@pytest.mark.parametrize("case", sample.of(GOLDEN["cases"], *TAKEN), ids=lambda c: c["name"])
def test_greedy_answer_equals_transformers(case):
    deployment = ["--attention", "1", "--experts", "2"] if case["name"] == "capital" else []
    out = subprocess.run(
        [SLUICE, "run", MODEL, "--ids", ",".join(map(str, case["prompt_ids"])), "-n", str(len(case["ids"])),
         "--temp", "0", "--json", "--ctx", "512", *deployment],
        capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(out.stdout)["ids"] == case["ids"]


def perplexity(how, text):
    out = subprocess.run([SLUICE, "logits", MODEL, "--perplexity", text, "--activations", how, "--kv-type", "f32", "--json"],
                         capture_output=True, text=True, timeout=600, check=True)
    return json.loads(out.stdout)["perplexity"]


@pytest.mark.parametrize("how", sample.of(["bf16", "bf16-parts"], 0))
def test_activations_in_bf16_cost_little(tmp_path, how):
    text = tmp_path / "text"
    text.write_text((ROOT / "tests" / "golden" / "corpus.txt").read_text()[:16000 if sample.WHOLE else 4000])
    exact, rounded = perplexity("f32", text), perplexity(how, text)
    assert rounded != exact and abs(rounded / exact - 1) < 0.002
