"""Weights of types that become Q8_0 as they are read (Q5_0, IQ4_NL), and tensors that are transposed: ranks give the bits
of one worker, and copy together no more than it does.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy
import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tools" / "py")]

gguf = pytest.importorskip("gguf", reason="gguf-py (PyPI: gguf) is not installed")
import gguf_make  # noqa: E402
from test_gguf import GOLDEN, SLUICE  # noqa: E402

IDS = ",".join(str((7 * i * i + 3 * i) % 90 + 5) for i in range(40))
HOW = [["--exact"], ["--exact", "--segments"], []]
RANKS = [["--tp", 2], ["--tp", 4, "--tp-ranks", "processes"], ["--tp", 8, "--threads", 8]]


def packed(out, name, kind, **how):
    """A fixture whose matrices are of that type where their rows are whole blocks, the embedding among them."""

    def pick(_, weights):
        return None if weights.ndim == 1 or weights.shape[-1] % 32 == 0 else gguf.GGMLQuantizationType.F16

    gguf_make.write(out, GOLDEN / name, kind, pick=pick, **how)


def dbrx(folder):
    """A folder with experts of 64 values and rows of 64, of which the fixture has 24 and 56."""
    shutil.copytree(GOLDEN / "dbrx-tiny", folder)
    config = json.loads((folder / "config.json").read_text())
    d, f, e, kv = 64, 64, config["ffn_config"]["moe_num_experts"], 2 * 16
    config["d_model"] = d
    config["ffn_config"]["ffn_hidden_size"] = f
    (folder / "config.json").write_text(json.dumps(config))
    rng, made = numpy.random.default_rng(5), []
    for name, w in gguf_make.load(folder).items():
        shape = {"Wqkv": (d + 2 * kv, d), "out_proj": (d, d), "router": (e, d), "mlp": (e * f, d)}
        wanted = next((s for part, s in shape.items() if part in name), (w.shape[0], d) if w.ndim == 2 else (d,))
        w = rng.standard_normal(wanted).astype("<f4") / 8 if len(wanted) == 2 else numpy.ones(wanted, "<f4")
        made.append((name, w))
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    gguf_make.write_safetensors(folder / "model.safetensors", made)
    return folder


def logits(model, path, *extra):
    """They, and the MB that each rank, or the worker, says it copied."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")} | {"SLUICE_LOG": "info"}
    command = [SLUICE, "logits", model, "--ids", IDS, "--npy", path, *extra]
    done = subprocess.run([str(a) for a in command], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0 and "Sanitizer" not in done.stderr, done.stderr
    return numpy.load(path), [float(mb) for mb in re.findall(r"([0-9.]+) MB of weights are in memory of its own", done.stderr)]


def embedding(model):
    """MB of one that is not the head, too, as Q8_0: ranks read its rows from the file, a worker alone has copied it."""
    shape = {str(t.name): t.n_elements for t in gguf.GGUFReader(model).tensors}
    return shape["token_embd.weight"] * 34 / 32 / 1e6 if "output.weight" in shape else 0


def check(model, path, spare, embed=0):
    """spare: MB that a rank has beside its part: rows of the embedding, latents, kv heads that several have."""
    for how in HOW:
        one, copied = logits(model, path, *how)
        assert numpy.isfinite(one).all() and len(copied) == 1 and copied[0] > 0.05
        for extra in RANKS:
            got, each = logits(model, path, *how, *extra)
            assert got.tobytes() == one.tobytes(), (how, extra)
            assert len(each) == extra[1] and sum(each) <= copied[0] - embed + extra[1] * spare, (how, extra, each, copied)


@pytest.mark.parametrize("name, kind", [("mixtral-tiny", "Q5_0"), ("mixtral-tiny", "IQ4_NL"), ("qwen3moe-tiny", "Q5_0"),
                                        ("deepseekv2-tiny", "IQ4_NL"), ("qwen2moe-tiny", "Q5_0")])
def test_types_that_become_q8_0(tmp_path, name, kind):
    """An embedding that is the head, too, and one that is not; latents, shared experts, dense blocks."""
    packed(tmp_path / "m.gguf", name, kind)
    check(tmp_path / "m.gguf", tmp_path / "x.npy", 0.011, embedding(tmp_path / "m.gguf"))


def test_folders_that_are_transposed(tmp_path):
    check(dbrx(tmp_path / "dbrx"), tmp_path / "x.npy", 0.001)


def test_one_tensor_of_queries_keys_and_values(tmp_path):
    folder, out = dbrx(tmp_path / "dbrx"), tmp_path / "m.gguf"
    gguf_make.write(out, folder, "Q5_0")
    assert b"attn_qkv" in out.read_bytes()
    check(out, tmp_path / "x.npy", 0.001, embedding(out))
