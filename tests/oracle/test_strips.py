"""Weights in strips (`sluice convert --repack`): the same bits as the file they were made from, by every instruction set of
this machine, for few rows and many, and for workers and ranks. What cannot be used is refused by name.
"""

import json
import pathlib
import re
import struct
import sys

import numpy
import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tools" / "py")]
import check  # noqa: E402

gguf = pytest.importorskip("gguf", reason="gguf-py (PyPI: gguf) is not installed")
import gguf_make  # noqa: E402
from test_gguf import GOLDEN, MIXED, SLUICE, patched  # noqa: E402

STRIPS = 0x534C0000
FIVE = gguf.GGMLQuantizationType.Q5_0  # becomes Q8_0 as it is read
LONG = [(7 * i * i + 3 * i + 5) % 500 for i in range(70)]
# whose rows and blocks fit: the other fixtures have none that do
FAMILIES = ["deepseekv2-tiny", "glm4moe-tiny", "gptoss-tiny", "mixtral-tiny", "olmoe-tiny", "qwen2moe-tiny",
            "qwen3moe-tiny"]


def write(out, name, **how):
    """A fixture whose matrices are Q8_0 where their rows are whole blocks."""

    def pick(tensor, weights):
        fits = weights.ndim == 1 or (weights.shape[-1] % 32 == 0 and not tensor.endswith(".bias"))
        return None if fits else gguf.GGMLQuantizationType.F16

    gguf_make.write(out, GOLDEN / name, "Q8_0", pick=pick, **how)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model's file, and the same in strips, once."""
    folder, done = tmp_path_factory.mktemp("strips"), {}

    def make(name):
        if name not in done:
            rows = MIXED
            if name != "mixed":
                rows = folder / f"{name}.gguf"
                write(rows, name)
            out = folder / f"{name}-strips.gguf"
            said = json.loads(check.run(SLUICE, "convert", rows, out, "--repack", "--json"))
            assert said["in_strips"] > 0 and said["bytes_in_strips"] > 0
            done[name] = rows, out
        return done[name]

    return make


def logits(model, ids, extra=()):
    return check.sluice_logits(SLUICE, model, ids, extra)


def same(pair, ids=LONG, extra=()):
    rows, strips = (logits(model, ids, extra) for model in pair)
    assert numpy.isfinite(rows).all() and rows.tobytes() == strips.tobytes()


def instruction_sets():
    said = json.loads(check.run(SLUICE, "devices", "--json"))
    return [t["name"] for t in said["tables"] if t["runs"]]


def test_every_instruction_set_gives_the_bits_of_rows(made):
    for isa in [None, *instruction_sets()]:
        same(made("mixed"), extra=["--isa", isa] if isa else [])


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9, 33])
def test_few_rows_and_many(made, rows):
    same(made("mixed"), LONG[:rows])


def test_activations_in_f32(made):
    same(made("mixed"), LONG[:12], ["--activations", "f32"])


@pytest.mark.parametrize("name", FAMILIES)
def test_families(made, name):
    same(made(name), LONG[:40])


@pytest.mark.parametrize(
    "how",
    [["--attention", "1", "--experts", "2"], ["--tp", "2"], ["--tp", "4"], ["--pp", "2"],
     ["--segments", "--tp", "2"]],
    ids=" ".join,
)
def test_workers_and_ranks(made, how):
    same(made("mixed"), LONG[:20], ["--exact", *how])


def test_served_tokens(made):
    answers = [
        json.loads(check.run(SLUICE, "run", model, "-p", "Who was Ruth?", "-n", 24, "--temp", 0, "--json"))["ids"]
        for model in made("mixed")
    ]
    assert answers[0] == answers[1]


def tensors(path):
    """Name, dimensions, number of the type and bytes of each tensor, read without anybody's reader."""
    raw, at = path.read_bytes(), 8

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, raw, at)
        at += struct.calcsize("<" + form)
        return value[0]

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return raw[at - n : at].decode()

    def value(kind):
        nonlocal at
        if kind == 8:
            return text()
        if kind == 9:
            inner, n = take("I"), take("Q")
            return [value(inner) for _ in range(n)]
        return take("BbHhIifBXXQqd"[kind])

    n, n_keys = take("Q"), take("Q")
    keys = {}
    for _ in range(n_keys):
        name = text()
        keys[name] = value(take("I"))
    entries = []
    for _ in range(n):
        name = text()
        dims = [take("Q") for _ in range(take("I"))]
        entries.append((name, dims, take("I"), take("Q")))
    align = keys.get("general.alignment", 32)
    begin = (at + align - 1) // align * align
    ends = sorted(e[3] for e in entries)[1:] + [len(raw) - begin]
    after = dict(zip(sorted(e[3] for e in entries), ends))
    return keys, {e[0]: (e[1], e[2], raw[begin + e[3] : begin + after[e[3]]]) for e in entries}


def unpacked(number, k, data):
    """The rows of a tensor in strips, by what quant/strips.h says."""
    block, bytes_ = {8: (32, 34), 2: (32, 18), 12: (256, 144), 13: (256, 176), 14: (256, 210)}[number]
    n, words, rows = k // block, bytes_ // 4, []
    for at in range(0, len(data) // (16 * n * bytes_) * 16 * n * bytes_, 16 * n * bytes_):
        strip, pos, out = data[at : at + 16 * n * bytes_], 0, [[] for _ in range(16)]
        for b in range(0, n, 2):
            here = min(2, n - b)
            scale = [[b""] * here for _ in range(16)]
            if bytes_ % 4:
                for r in range(16):
                    for i in range(here):
                        scale[r][i] = strip[pos : pos + 2]
                        pos += 2
            for i in range(here):
                for r in range(16):
                    word = b"".join(strip[pos + 64 * w + 4 * r : pos + 64 * w + 4 * r + 4] for w in range(words))
                    out[r].append(word + scale[r][i] if number == 14 else scale[r][i] + word)
                pos += 64 * words
        rows += [b"".join(r) for r in out]
    return b"".join(rows)


@pytest.mark.parametrize("name", ["mixed", "glm4moe-tiny"])
def test_the_file_has_the_same_keys_and_bytes(made, name):
    (keys, rows), (kept, strips) = (tensors(path) for path in made(name))
    assert kept.pop("general.alignment") == 64
    keys.pop("general.alignment", None)
    assert kept == keys and list(strips) == list(rows)
    seen = set()
    for tensor, (dims, number, data) in strips.items():
        want_dims, want_number, want = rows[tensor]
        assert dims == want_dims and number % STRIPS == want_number
        if number >= STRIPS:
            seen.add(want_number)
            data = unpacked(want_number, dims[0], data)
        size = min(len(data), len(want))
        assert data[:size] == want[:size] and abs(len(data) - len(want)) < 64
    assert seen == ({8, 2, 12, 13, 14} if name == "mixed" else {8})


def test_parts_become_one_file(tmp_path):
    write(tmp_path / "m.gguf", "glm4moe-tiny", parts={"split_max_tensors": 20})
    first = sorted(tmp_path.iterdir())[0]
    assert "-00001-of-" in first.name
    check.run(SLUICE, "convert", first, tmp_path / "one.gguf", "--repack")
    keys, _ = tensors(tmp_path / "one.gguf")
    assert not [key for key in keys if key.startswith("split.")]
    same((first, tmp_path / "one.gguf"), LONG[:20])


def test_others_refuse_the_file(made):
    with pytest.raises(ValueError):
        gguf.GGUFReader(made("mixed")[1])


def refused(says, *args):
    with pytest.raises(check.Failure, match=f"exit [12]: .*{re.escape(says)}"):
        check.run(SLUICE, *args)


def test_what_cannot_be_laid_out_is_refused(made, tmp_path):
    rows, strips = made("mixed")
    out = tmp_path / "out.gguf"
    refused("weights lie in strips already", "convert", strips, out, "--repack")
    refused("is no GGUF file", "convert", GOLDEN / "mixtral-tiny", out, "--repack")
    refused("--type: weights keep their types", "convert", rows, out, "--repack", "--type", "q8_0")
    check.run(SLUICE, "convert", GOLDEN / "mixtral-tiny", tmp_path / "f16.gguf", "--type", "f16")
    refused("has no weights of Q8_0", "convert", tmp_path / "f16.gguf", out, "--repack")
    assert not out.exists()
    out.write_text("mine")
    refused("is there already", "convert", rows, out, "--repack")
    assert out.read_text() == "mine"


def entry(name, dims, number):
    return name.encode() + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<I", number)


def test_what_does_not_lie_in_strips_is_refused(made, tmp_path):
    strips = made("mixed")[1]
    _, all_of = tensors(strips)
    norm = "blk.0.attn_norm.weight"
    dims, number, _ = all_of[norm]
    model = patched(strips, tmp_path, entry(norm, dims, number), entry(norm, dims, number + STRIPS))
    refused(f'tensor "{norm}": F32 does not lie in strips', "inspect", model)
    gguf_make.write(tmp_path / "q5_0.gguf", GOLDEN / "glm4moe-tiny", "F32", pick=lambda tensor, _: FIVE if "gate_exps" in tensor else None)
    five = tmp_path / "q5_0.gguf"
    gate = next(name for name, (_, number, _) in tensors(five)[1].items() if number == FIVE)
    dims, number, _ = tensors(five)[1][gate]
    model = patched(five, tmp_path, entry(gate, dims, number), entry(gate, dims, number + STRIPS))
    refused(f'tensor "{gate}": Q5_0 does not lie in strips', "inspect", model)
    embed = "token_embd.weight"
    dims, number, _ = all_of[embed]
    model = patched(strips, tmp_path, entry(embed, dims, number), entry(embed, dims, number + STRIPS))
    refused("lies in strips, but is read row by row", "logits", model, "--ids", "1,2", "--npy", tmp_path / "x.npy")


def test_what_would_cut_a_strip_is_refused(made, tmp_path):
    """Eight ranks have eight rows of gptoss-tiny's DOWN each; a segment of mixtral-tiny's O is one block of a pair."""
    args = ["--ids", "1,2", "--npy", tmp_path / "x.npy"]
    refused("which 8 ranks would cut at row 8 of 64, no multiple of 16", "logits", made("gptoss-tiny")[1], *args, "--tp", "8", "--threads", "8")
    segments = ["logits", made("mixtral-tiny")[1], *args, "--exact", "--segments"]
    refused("which --segments would cut at value 32 of 64, no multiple of 64", *segments)
    refused("which 2 ranks with --segments would cut at value 32 of 64, no multiple of 64", *segments, "--tp", "2")
