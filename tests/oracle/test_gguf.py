"""GGUF files: the same weights as safetensors give the same bits; llama.cpp on the same file gives nearly the same
logits. Files are written by gguf-py (tools/py/gguf_make.py), so that reader and writer share nothing.

llama.cpp: SLUICE_LLAMA_CPP names its source tree, built in build/ with shared libraries; without it those tests are
skipped.
"""

import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

import numpy
import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tools" / "py")]
import check  # noqa: E402
import reference  # noqa: E402

pytest.importorskip("gguf", reason="gguf-py (PyPI: gguf) is not installed")
import gguf_make  # noqa: E402

SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
LLAMA = os.environ.get("SLUICE_LLAMA_CPP")
GOLDEN = ROOT / "tests" / "golden"
MIXED = GOLDEN / "mixed.gguf"
IDS = [5, 77, 300, 12, 9, 400, 512, 33, 21, 8, 640, 77]
SAME = [
    ("mixtral-tiny", "F32"),
    ("qwen3moe-tiny", "BF16"),
    ("qwen3moe-tiny", "F32"),
    ("qwen3moe-sparse", "F16"),
    ("qwen2moe-tiny", "F32"),
]
TYPES = {"qwen3moe-tiny": "BF16", "mixtral-tiny": "F32"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Writes a fixture as GGUF, once."""
    folder, done = tmp_path_factory.mktemp("gguf"), {}

    def make(name, kind):
        if (name, kind) not in done:
            done[name, kind] = folder / f"{name}.{kind}.gguf"
            gguf_make.write(done[name, kind], GOLDEN / name, kind)
        return done[name, kind]

    return make


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """The folder with the values of mixed.gguf, which is what the script writes."""
    folder = tmp_path_factory.mktemp("mixed")
    gguf_make.write_mixed(folder / "mixed.gguf", folder / "plain", GOLDEN / "mixtral-tiny")
    assert (folder / "mixed.gguf").read_bytes() == MIXED.read_bytes()
    return folder / "plain"


def logits(model, ids=IDS, extra=("--activations", "f32")):
    return check.sluice_logits(SLUICE, model, ids, extra)


@pytest.mark.parametrize("name,kind", SAME)
def test_plain_types_give_the_bits_of_safetensors(made, name, kind):
    assert logits(made(name, kind)).tobytes() == logits(GOLDEN / name).tobytes()


def test_blocks_give_the_bits_of_their_values(mixed):
    assert logits(MIXED).tobytes() == logits(mixed).tobytes()


def test_blocks_are_near_double_precision(mixed):
    want = reference.Model(mixed).forward(IDS).astype(numpy.float32)
    assert check.deviation(logits(MIXED), want)[0] <= check.BAR


def test_activations_of_8_bits_are_near():
    exact, rounded = logits(MIXED), logits(MIXED, extra=())
    off = numpy.sqrt(((rounded - exact) ** 2).mean() / (exact**2).mean())
    assert 0 < off < 0.03


@pytest.mark.parametrize("how", ["f32", "int8"])
def test_workers_give_the_bits_of_one_process(how):
    alone = logits(MIXED, extra=["--exact", "--activations", how])
    apart = logits(MIXED, extra=["--exact", "--activations", how, "--attention", "1", "--experts", "2"])
    assert alone.tobytes() == apart.tobytes()


@pytest.mark.parametrize("name", TYPES)
def test_texts_become_the_ids_of_the_golden(made, name):
    lines = (GOLDEN / name / "tokenizer.jsonl").read_text(encoding="utf-8").split("\n")
    cases = [json.loads(line) for line in lines if line]
    cases = [c for c in cases if c["text"] and "\0" not in c["text"] and len(c["text"]) < 4000][::7][:30]
    for case in cases:
        out = check.run(SLUICE, "run", made(name, TYPES[name]), "-p", case["text"], "-n", 1, "--json")
        assert json.loads(out)["prompt_ids"] == case["ids"], case["text"]


@pytest.mark.parametrize("name", TYPES)
def test_a_chat_is_that_of_the_folder(made, name):
    def chat(model):
        out = check.run(SLUICE, "run", model, "--chat", "-p", "Who was Ruth?", "-n", 8, "--temp", 0, "--json")
        answer = json.loads(out)
        return answer["prompt_ids"], answer["ids"]

    assert chat(made(name, TYPES[name])) == chat(GOLDEN / name)


def patched(path, tmp_path, before, after):
    raw = path.read_bytes()
    assert raw.count(before) == 1 and len(before) == len(after)
    out = tmp_path / "patched.gguf"
    out.write_bytes(raw.replace(before, after))
    return out


@pytest.mark.parametrize(
    "before,after,says",
    [
        (b"smollm", b"smoolm", 'tokenizer.ggml.pre: "smoolm" is not supported'),
        (b"\x05\0\0\0\0\0\0\0llama\x14", b"\x05\0\0\0\0\0\0\0lloma\x14", 'general.architecture: "lloma"'),
        (b"llama.rope.freq_base", b"llama.rope.freq_bass", "llama.rope.freq_bass: unknown key"),
        (b"blk.1.ffn_down_exps.weight", b"blk.1.ffn_dawn_exps.weight", "blk.1.ffn_down_exps.weight"),
    ],
)
def test_what_is_not_known_is_refused_by_name(tmp_path, before, after, says):
    model = patched(MIXED, tmp_path, before, after)
    done = subprocess.run([SLUICE, "run", model, "-p", "x", "-n", "1"], capture_output=True, text=True)
    assert done.returncode != 0 and says in done.stderr and str(model) in done.stderr


# ---- a model in parts ----


@pytest.fixture(scope="module", params=[False, True], ids=["", "first-without-tensors"])
def parts(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    gguf_make.write(folder / "m.gguf", GOLDEN / "qwen2moe-tiny", "F32",
                    parts={"split_max_tensors": 20, "small_first_shard": request.param})
    return sorted(folder.iterdir())


def test_parts_are_one_model(parts):
    assert len(parts) >= 3 and parts[0].name == f"m-00001-of-{len(parts):05}.gguf"
    assert logits(parts[0]).tobytes() == logits(GOLDEN / "qwen2moe-tiny").tobytes()
    seen = json.loads(check.run(SLUICE, "inspect", parts[0], "--json"))
    assert seen["files"] == len(parts) and seen["bytes"] > 0


def test_parts_that_do_not_fit_are_refused(parts, tmp_path):
    n = len(parts)

    def refused(model, says):
        with pytest.raises(check.Failure, match=f"exit [12]: .*{re.escape(says)}"):
            logits(model)

    refused(parts[1], f"split.no: part 2 of {n}; name the first, which ends with \"-00001-of-{n:05}.gguf\"")
    shutil.copy(parts[0], tmp_path / parts[0].name)
    refused(tmp_path / parts[0].name, f"-00002-of-{n:05}.gguf: cannot open")
    shutil.copy(parts[0], tmp_path / "model.gguf")
    refused(tmp_path / "model.gguf", f'split.no: part 1 of {n}, but the name does not end with "-00001-of-{n:05}.gguf"')
    for path in parts[1:]:
        shutil.copy(path, tmp_path / path.name)
    shutil.copy(parts[2], tmp_path / parts[1].name)
    refused(tmp_path / parts[0].name, "split.no: part 3 of")
    raw = parts[1].read_bytes()
    (tmp_path / parts[1].name).write_bytes(raw.replace(b"split.tensors.count", b"qwen2moe.block_coun"))
    refused(tmp_path / parts[0].name, "qwen2moe.block_coun: a key of the model, which only its first part may have")
    (tmp_path / parts[1].name).write_bytes(raw[:-5000])
    refused(tmp_path / parts[0].name, "past the end of the file")
    (tmp_path / parts[1].name).write_bytes(raw)
    raw = parts[0].read_bytes()
    at = raw.index(b"split.tensors.count") + 23
    (tmp_path / parts[0].name).write_bytes(raw[:at] + struct.pack("<i", 5) + raw[at + 4 :])
    refused(tmp_path / parts[0].name, f"split.tensors.count: 5, but the {n} parts have")


# ---- llama.cpp ----


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    if not LLAMA:
        pytest.skip("SLUICE_LLAMA_CPP does not name a built llama.cpp")
    root = pathlib.Path(LLAMA)
    libraries = root / "build" / "bin"
    if not list(libraries.glob("libllama.so*")):
        pytest.skip(f"no libllama.so in {libraries}")
    program = tmp_path_factory.mktemp("llama") / "llama_logits"
    command = ["gcc", "-O1", f"-I{root}/include", f"-I{root}/ggml/include", str(HERE / "llama_logits.c"), "-o", program,
               f"-L{libraries}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}"]
    subprocess.run(command, check=True)

    def ask(model, ids):
        out = program.parent / "logits.f32"
        subprocess.run([program, model, out, *map(str, ids)], check=True, capture_output=True)
        return numpy.fromfile(out, "<f4").reshape(len(ids), -1)

    ask.ids = lambda model, text: subprocess.run(
        [program, model, "-", text], check=True, capture_output=True, text=True
    ).stdout.strip().split(",")
    return ask


def test_llama_cpp_agrees_on_f32(made, llama):
    model = made("mixtral-tiny", "F32")
    assert check.deviation(llama(model, IDS), logits(model))[0] <= check.BAR


def test_llama_cpp_is_near_on_blocks(llama):
    """It rounds activations to 8 bits before products with blocks; here they stay f32."""
    theirs, ours = llama(MIXED, IDS), logits(MIXED)
    worst = check.deviation(theirs, ours)[0]
    same = (theirs.argmax(-1) == ours.argmax(-1)).mean()
    print(f"largest deviation {worst:.3g} of the largest logit, {same:.0%} of the likeliest ids the same")
    assert worst <= 0.06 and same >= 0.8


def test_llama_cpp_splits_texts_alike(made, llama):
    model = made("mixtral-tiny", "F32")
    for text in ["And the word of 12345 came", "It's <|im_end|> a\n\n  test  ", "Ça va? 漢字 🙂"]:
        out = check.run(SLUICE, "run", model, "-p", text, "-n", 1, "--json")
        assert list(map(str, json.loads(out)["prompt_ids"])) == llama.ids(model, text)


# ---- sluice convert ----


def convert(folder, out, kind, extra=()):
    return json.loads(check.run(SLUICE, "convert", folder, out, "--type", kind, "--json", *extra))


@pytest.mark.parametrize("name,kind", [("mixtral-tiny", "f32"), ("qwen3moe-tiny", "bf16"), ("qwen3moe-sparse", "f16"),
                                       ("qwen2moe-tiny", "f32")])
def test_converted_weights_keep_their_bits(tmp_path, name, kind):
    convert(GOLDEN / name, tmp_path / "m.gguf", kind)
    assert logits(tmp_path / "m.gguf").tobytes() == logits(GOLDEN / name).tobytes()


@pytest.fixture
def llama4(tmp_path):
    """llama4-tiny with what llama.cpp takes for granted of this family."""
    folder = tmp_path / "llama4"
    shutil.copytree(GOLDEN / "llama4-tiny", folder)
    config = json.loads((folder / "config.json").read_text())
    for key in ("no_rope_layers", "layer_types"):
        config.pop(key)
    config |= {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_llama4_is_converted(llama4, tmp_path):
    """Bits differ where a pair's frequency is blended: its factor was rounded."""
    convert(llama4, tmp_path / "m.gguf", "bf16")
    ids = IDS[:4] + list(range(100, 180))
    assert check.deviation(logits(tmp_path / "m.gguf", ids), logits(llama4, ids))[0] <= 2e-6
    config = json.loads((llama4 / "config.json").read_text())
    (llama4 / "config.json").write_text(json.dumps(config | {"rope_scaling": None}))
    convert(llama4, tmp_path / "plain.gguf", "bf16")
    assert logits(tmp_path / "plain.gguf", ids).tobytes() == logits(llama4, ids).tobytes()


@pytest.mark.parametrize(
    "before,after,says",
    [
        (b"rope_freqs.weight", b"rope_freqz.weight", '"rope_freqz.weight" is unknown'),
        (b"rope_freqs.weight\1\0\0\0\x08", b"rope_freqs.weight\1\0\0\0\x07", "expected F32 of shape [8]"),
    ],
)
def test_rope_factors_that_do_not_fit_are_refused(llama4, tmp_path, before, after, says):
    convert(llama4, tmp_path / "m.gguf", "f32")
    with pytest.raises(check.Failure, match=re.escape(says)):
        logits(patched(tmp_path / "m.gguf", tmp_path, before, after), [1, 2])


UPPER, LOWER, ENDS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = "|".join([
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{ENDS}", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{ENDS}",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])  # fmt: skip


def test_words_are_split_by_case(llama4, tmp_path, request):
    """The split of Llama 4 and gpt-oss: the folder's ids, by the name that GGUF has for it."""
    doc = json.loads((llama4 / "tokenizer.json").read_text(encoding="utf-8"))
    split = doc["pre_tokenizer"]["pretokenizers"][0]
    assert split["type"] == "Split"
    split["pattern"], doc["normalizer"] = {"Regex": O200K}, None
    (llama4 / "tokenizer.json").write_text(json.dumps(doc), encoding="utf-8")
    convert(llama4, tmp_path / "m.gguf", "f32")
    named = patched(tmp_path / "m.gguf", tmp_path, b"tokenizer.huggingface.json", b"tokenizer.huggingfacf.json")
    texts = ["And the LORDsaid toJonah's SON'S 12345 //\n/x", "It's  a\n\n  test", "Ça vaBien? ΑβΓ ǅ"]
    ask = request.getfixturevalue("llama") if LLAMA else None
    for text in texts:
        want, got = (
            json.loads(check.run(SLUICE, "run", m, "-p", text, "-n", 1, "--json"))["prompt_ids"] for m in (llama4, named)
        )
        assert got == want
        if ask and text.isascii():  # its copy of the pattern knows cases of ASCII alone
            assert list(map(str, want)) == ask.ids(named, text)


NO_HAN, CASE = r"&&[^\p{Han}]]", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
WORDS = r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {  # of the families' tokenizer.json, by their names in GGUF; letters are those of ASCII and Greek
    "deepseek-v3": [
        r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
        """[!"#$%&'()*+,""" r"\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "deepseek-llm": [
        "[\r\n]", r"\s?[A-Za-zΑ-ΡΣ-ϵ]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}",
    ],
    "kimi-k2": [
        rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{UPPER[:-1]}{NO_HAN}*{LOWER[:-1]}{NO_HAN}+{CASE}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{UPPER[:-1]}{NO_HAN}+{LOWER[:-1]}{NO_HAN}*{CASE}{WORDS}",
    ],
    "glm4": [rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+{WORDS}"],
    "dbrx": [rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+{WORDS}"],
}  # fmt: skip


@pytest.mark.parametrize("pre", SPLITS)
def test_splits_of_families_go_by_their_names(pre, tmp_path, request):
    from gguf import GGUFReader

    folder = tmp_path / "folder"
    shutil.copytree(GOLDEN / "gptoss-tiny", folder)
    doc = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    steps = [{"type": "Split", "pattern": {"Regex": r}, "behavior": "Isolated"} for r in SPLITS[pre]]
    last = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    doc["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*steps, last]}
    doc["normalizer"] = {"type": "Sequence", "normalizers": []}
    (folder / "tokenizer.json").write_text(json.dumps(doc), encoding="utf-8")
    gguf_make.write(tmp_path / "m.gguf", folder, "F32", pre=pre)
    if pre not in ("glm4", "deepseek-llm"):  # that of dbrx, and letters are not all of the published ones
        convert(folder, tmp_path / "converted.gguf", "f32")
        field = GGUFReader(tmp_path / "converted.gguf").get_field("tokenizer.ggml.pre")
        assert field.contents() == pre
    ask = request.getfixturevalue("llama") if LLAMA else None
    texts = ["And the LORD spake 12345 times, it's\n\n  (so) $x=1; he SAID  \t", "αβΓ 漢字かな한국 ５１ “no”—yes!？ ", "a\r\n \n"]
    for text in texts:
        want, got = (
            json.loads(check.run(SLUICE, "run", m, "-p", text, "-n", 1, "--json"))["prompt_ids"] for m in (folder, tmp_path / "m.gguf")
        )
        assert got == want, text
        if ask:
            assert list(map(str, want)) == ask.ids(tmp_path / "m.gguf", text), text


def test_what_llama4_files_cannot_say_is_refused(tmp_path):
    with pytest.raises(check.Failure, match="GGUF of llama4 cannot say"):
        convert(GOLDEN / "llama4-tiny", tmp_path / "m.gguf", "f32")
    assert not (tmp_path / "m.gguf").exists()


def test_llama_cpp_agrees_on_llama4(llama4, tmp_path, llama):
    convert(llama4, tmp_path / "m.gguf", "f32")
    ids = IDS[:4] + list(range(100, 180))
    assert check.deviation(llama(tmp_path / "m.gguf", ids), logits(tmp_path / "m.gguf", ids))[0] <= check.BAR


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_converted_blocks_are_those_of_gguf_py(tmp_path, mixed, kind):
    from gguf import GGMLQuantizationType, GGUFReader, quants

    convert(mixed, tmp_path / "m.gguf", kind)
    config = json.loads((mixed / "config.json").read_text())
    want = gguf_make.tensors_of(mixed, config)
    got = {t.name: t for t in GGUFReader(tmp_path / "m.gguf").tensors}
    assert set(want) == set(got)
    for name, w in want.items():
        t = got[name].tensor_type
        if w.ndim > 1 and "ffn_gate_inp" not in name:
            assert t.name == ("Q8_0" if name == "output.weight" else kind.upper()), name
        raw = w if t == GGMLQuantizationType.F32 else quants.quantize(w, t)
        assert got[name].data.tobytes() == raw.tobytes(), name


def test_q4_k_errs_by_little(tmp_path, mixed):
    from gguf import GGUFReader, quants

    report = convert(mixed, tmp_path / "m.gguf", "q4_k")
    assert report["other_type"] == 0 and report["type"] == "Q4_K"
    want = gguf_make.tensors_of(mixed, json.loads((mixed / "config.json").read_text()))
    for t in GGUFReader(tmp_path / "m.gguf").tensors:
        if t.tensor_type.name == "Q4_K":
            values = quants.dequantize(t.data, t.tensor_type).reshape(want[t.name].shape)
            error = numpy.sqrt(((values - want[t.name]) ** 2).mean() / (want[t.name] ** 2).mean())
            assert error < 0.08, (t.name, error)


def test_a_file_that_is_there_stays(tmp_path):
    out = tmp_path / "m.gguf"
    out.write_text("mine")
    with pytest.raises(check.Failure, match="exit 2: sluice convert: .*is there already"):
        convert(GOLDEN / "mixtral-tiny", out, "q8_0")
    assert out.read_text() == "mine"
    convert(GOLDEN / "mixtral-tiny", out, "q8_0", ["--force"])
    assert out.read_bytes()[:4] == b"GGUF" and [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def prompt_ids(model, text):
    return json.loads(check.run(SLUICE, "run", model, "-p", text, "-n", 1, "--json"))["prompt_ids"]


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    """mixtral-tiny with a tokenizer of SentencePiece's shape; in the second file tokenizer.json goes unseen."""
    folder = tmp_path_factory.mktemp("spm")
    for path in (GOLDEN / "mixtral-tiny").iterdir():
        if path.suffix == ".safetensors" or path.name in ("config.json", "model.safetensors.index.json"):
            (folder / path.name).write_bytes(path.read_bytes())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        source = GOLDEN / "tokenizers" / "spm_legacy" / name
        if source.exists():
            (folder / name).write_bytes(source.read_bytes())
    convert(folder, folder / "m.gguf", "f32")
    raw = (folder / "m.gguf").read_bytes()
    assert raw.count(b"tokenizer.huggingface.json") == 1
    (folder / "plain.gguf").write_bytes(raw.replace(b"tokenizer.huggingface.json", b"tokenizer.huggingface.none"))
    (folder / "scores.gguf").write_bytes(
        raw.replace(b"tokenizer.huggingface.json", b"tokenizer.huggingface.none").replace(
            b"tokenizer.ggml.merges", b"tokenizer.ggml.morges"))
    return folder


TEXTS = ["In the beginning was the word", "  two  spaces and 1234", "Ça va? 漢字 🙂", "line\nline\n\n\tx", "a", "a <unk> b<unk>"]


@pytest.mark.parametrize("file", ["m.gguf", "plain.gguf"])
def test_sentencepiece_keeps_its_ids(sentencepiece, file):
    for text in TEXTS:
        assert prompt_ids(sentencepiece / file, text) == prompt_ids(sentencepiece, text), text


def test_llama_cpp_loads_what_convert_writes(tmp_path, mixed, llama):
    for kind, bar in [("f32", check.BAR), ("q8_0", 0.03), ("q4_k", 0.06)]:
        model = tmp_path / f"{kind}.gguf"
        convert(mixed, model, kind)
        assert check.deviation(llama(model, IDS), logits(model))[0] <= bar, kind
        for text in TEXTS:
            assert list(map(str, prompt_ids(model, text))) == llama.ids(model, text)


def test_llama_cpp_reads_scores_alike(sentencepiece, llama):
    """Without merges both follow scores; a text begins with the token that marks it, which the probe leaves out."""
    for text in TEXTS:
        ours = prompt_ids(sentencepiece / "scores.gguf", text)
        assert list(map(str, ours))[-len(llama.ids(sentencepiece / "scores.gguf", text)) :] == llama.ids(
            sentencepiece / "scores.gguf", text), text
