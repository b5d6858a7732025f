"""The command line: help, exit codes, error texts, JSON on stdout and nothing else, traces, plans.

SLUICE_BIN names the program (default build/sluice)."""

import ast
import collections
import json
import os
import pathlib
import platform
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import sample  # noqa: E402

SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
FIXTURE = ROOT / "tests" / "golden" / "qwen3moe-tiny"
SHARED = ROOT / "tests" / "golden" / "qwen2moe-tiny"
KV = ("f16", 2) if platform.machine() == "x86_64" else ("f32", 4)  # what --kv-type auto is
VERBS = ["run", "serve", "worker", "logits", "inspect", "bench", "simulate", "convert", "warm", "plan", "secret",
         "devices"]
IDS = ["--ids", "3,17,41"]


def sluice(*args, code=0, env=None, timeout=60):
    """Runs the program; stdout and stderr when it ends with `code`."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    done = subprocess.run([SLUICE, *map(str, args)], capture_output=True, timeout=timeout,
                          env={**clean, **(env or {})})
    out, err = done.stdout.decode(), done.stderr.decode(errors="replace")
    assert "Sanitizer" not in err and "assertion failed" not in err, err
    assert done.returncode == code, f"exit {done.returncode}, not {code}: {out}{err}"
    return out, err


def refused(code, *args, env=None):
    """Exit code `code`, nothing on stdout, one line on stderr that names the verb: that line."""
    out, err = sluice(*args, code=code, env=env)
    assert out == ""
    assert err.startswith("sluice") and err.count("\n") == 1, err
    return err


# ---- help, usage ----


def test_overview():
    out, err = sluice("--help")
    assert err == "" and all(f"sluice {v}" in out for v in VERBS)
    assert sluice("-h")[0] == out
    assert sluice(code=2) == ("", out)
    version, _ = sluice("--version")
    assert version.startswith("sluice ") and version.count("\n") == 1
    assert sluice("-v")[0] == sluice("-V")[0] == version and sluice("help")[0] == out
    assert "unknown verb 'dance'" in sluice("help", "dance", code=2)[1]


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb(verb):
    out, err = sluice(verb, "--help")
    assert err == ""
    assert out.startswith(f"sluice {verb}") and f"Example: sluice {verb} " in out
    assert "--log LEVEL" in out and "--help" in out
    assert all(len(line) <= 100 for line in out.splitlines())
    if verb == "serve":
        assert out.index("\nservice:") < out.index("\ndeployment") < out.index("\nlaboratory")
    assert sluice("help", verb)[0] == out


@pytest.mark.parametrize("options", [[], ["-p", "-"]])
def test_prompt_from_stdin(options):
    """A pipe holds the prompt; the newline at its end is the shell's."""
    want, _ = sluice("run", FIXTURE, "-p", "Once upon\na time", "-n", "4", "--json")
    for piped in ("Once upon\na time\n", "Once upon\na time"):
        done = subprocess.run([SLUICE, "run", FIXTURE, "-n", "4", "--json", *options], input=piped,
                              capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and json.loads(done.stdout)["prompt_ids"] == json.loads(want)["prompt_ids"]
    done = subprocess.run([SLUICE, "run", FIXTURE, *options], input="\n", capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "stdin is empty" in done.stderr


def test_unknown_verb():
    out, err = sluice("dance", code=2)
    assert out == "" and "unknown verb 'dance'" in err and "sluice run" in err


@pytest.mark.parametrize("args, text", [
    (["run"], "the model folder is missing (see --help)"),
    (["run", FIXTURE, "more"], "too many arguments (see --help)"),
    (["run", FIXTURE, "a", "b", "c", "d"], "unexpected argument 'd'"),
    (["run", FIXTURE, "--frobnicate"], "unknown option '--frobnicate' (see --help)"),
    (["run", FIXTURE, "--port", "1"], "unknown option '--port'"),
    (["run", FIXTURE, "--ids"], "option '--ids' needs LIST"),
    (["run", FIXTURE], "--prompt (-p) or --ids is missing"),
    (["run", FIXTURE, "--ids", "3,x"], "--ids: 'x' is not a token id from 0 to 1039"),
    (["run", FIXTURE, "--ids", "1040"], "--ids: '1040' is not a token id from 0 to 1039"),
    (["run", FIXTURE, "--ids", "3,-1"], "--ids: '-1' is not a token id"),
    (["run", FIXTURE, "--ids", ","], "--ids: ',' is not a token id"),
    (["run", FIXTURE, *IDS, "-n", "0"], "--max-tokens: '0' is not a whole number from 1 to 1000000"),
    (["run", FIXTURE, *IDS, "-n", "-5"], "--max-tokens: '-5' is not"),
    (["run", FIXTURE, *IDS, "-n", "1e99"], "--max-tokens: '1e99' is not"),
    (["run", FIXTURE, *IDS, "-n", "2.5"], "--max-tokens: '2.5' is not a whole number"),
    (["run", FIXTURE, *IDS, "-n", "nan"], "--max-tokens: 'nan' is not"),
    (["run", FIXTURE, *IDS, "-n", "3 "], "--max-tokens: '3 ' is not"),
    (["run", FIXTURE, *IDS, "-n="], "unknown option '-n='"),
    (["run", FIXTURE, *IDS, "--max-tokens="], "--max-tokens: '' is not"),
    (["run", FIXTURE, *IDS, "--top-p", "1.5"], "--top-p: '1.5' is not a number from -1 to 1"),
    (["run", FIXTURE, *IDS, "--temp", "inf"], "--temp: 'inf' is not"),
    (["run", FIXTURE, *IDS, "--exact=maybe"], "--exact: 'maybe' is not 0, 1, false or true"),
    (["run", FIXTURE, *IDS, "--attention", "16385"], "--attention: '16385' is not"),
    (["run", FIXTURE, *IDS, "--schedule", "magic"], "schedule 'magic' is unknown: ep, dep, pingpong, findep, eps, aep"),
    (["run", FIXTURE, *IDS, "--wire", "fp4"], "wire format 'fp4' is unknown"),
    (["run", FIXTURE, *IDS, "--transport", "pigeon"], "transport 'pigeon': shm, tcp, ucx or loop"),
    (["run", FIXTURE, *IDS, "--isa", "sse9", "--transport", "loop"], "sse9"),
    (["run", FIXTURE, *IDS, "--log", "loud"], "--log: 'loud' is not error, warn, info or debug"),
    (["run", FIXTURE, *IDS, "--ctx", "100000"], "context 100000, the model's limit is 512"),
    (["run", FIXTURE, *IDS, "--schedule", "dep"], "schedule dep keeps roles apart, 1 workers have both"),
    (["run", FIXTURE, *IDS, "--schedule", "ep", "--attention", "1", "--experts", "1"],
     "schedule ep is colocated"),
    (["logits", FIXTURE, *IDS], "--npy FILE is missing"),
    (["worker"], "--join ADDRESS is missing"),
    (["worker", "extra"], "too many arguments"),
    (["bench", FIXTURE, "--n-prompt", "0", "--n-gen", "0"], "--n-prompt and --n-gen are both 0"),
    (["bench", FIXTURE, "--n-prompt", "600"], "--n-prompt: 600, the context has 512"),
    (["bench", FIXTURE, "--n-prompt", "8", "--n-gen", "511"], "--n-gen: 511, the context has 512"),
    (["serve", FIXTURE, "--remote", "--port", "0"], "--remote: a secret is needed"),
])
def test_usage_errors(args, text):
    assert text in refused(2, *args)


def test_environment():
    out, _ = sluice("run", FIXTURE, *IDS, "--json", env={"SLUICE_MAX_TOKENS": "3", "SLUICE_IGNORE_EOS": "1"})
    assert len(json.loads(out)["ids"]) == 3
    out, _ = sluice("run", FIXTURE, *IDS, "--json", "-n", "2", "--ignore-eos", env={"SLUICE_MAX_TOKENS": "3"})
    assert len(json.loads(out)["ids"]) == 2
    err = refused(2, "run", FIXTURE, *IDS, env={"SLUICE_MAX_TOKENS": "many"})
    assert "SLUICE_MAX_TOKENS: 'many' is not a whole number" in err
    err = refused(2, "run", FIXTURE, *IDS, env={"SLUICE_SECRET": "short"})
    assert "SLUICE_SECRET: a secret has 16 to 64 bytes" in err


# ---- models that cannot be used ----


def test_missing_model(tmp_path):
    for verb in ["run", "inspect", "bench", "serve"]:
        err = refused(1, verb, tmp_path / "nowhere")
        assert err.startswith(f"sluice {verb}: ") and str(tmp_path / "nowhere") in err


@pytest.fixture
def broken(tmp_path):
    """A copy of the fixture to damage."""
    folder = tmp_path / "model"
    shutil.copytree(FIXTURE, folder)
    return folder


def test_truncated_weights(broken):
    weights = broken / "model.safetensors"
    whole = weights.read_bytes()
    for keep in [0, 4, 100, len(whole) // 2, len(whole) - 1]:
        weights.write_bytes(whole[:keep])
        for verb in ["inspect", "run"]:
            err = refused(1, verb, broken, *(IDS if verb == "run" else []))
            assert "model.safetensors" in err, err


def test_inspect_gives_one_figure_of_the_cache():
    out, _ = sluice("inspect", FIXTURE)
    assert f"KV cache      {2 * 4 * 2 * 32 * KV[1]} bytes per token ({KV[0]})" in out and out.count("bytes per token") == 1


def test_missing_weights(broken):
    (broken / "model.safetensors").unlink()
    assert "model.safetensors" in refused(1, "run", broken, *IDS)
    out, _ = sluice("inspect", broken)
    assert "the folder has no model.safetensors" in out and "bytes per token" in out


def test_lying_config(broken):
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "moe_intermediate_size": 64}))
    for how in [], ["--schedule", "ep"]:  # refused uses up one line
        err = refused(1, "run", broken, *IDS, *how)
        assert "mlp.experts.0.gate_proj.weight" in err and "shape [48, 64], expected [64, 64] by config.json" in err
        assert "lost" not in err
    (broken / "config.json").write_text(json.dumps({**config, "architectures": ["Dancer"]}))
    assert "Dancer" in refused(1, "inspect", broken)
    (broken / "config.json").write_text("{")
    assert "config.json" in refused(1, "inspect", broken)


def test_infeasible():
    err = refused(3, "run", FIXTURE, *IDS, "--kv-pages", "3")
    assert "3 KV pages of 32 positions hold no request of context 512" in err


def test_too_long_for_the_context():
    err = refused(1, "run", FIXTURE, *IDS, "-n", "511")
    assert "prompt of 3 tokens and max_tokens of 511 take 513 positions, the context has 512" in err


def test_prompt_of_exactly_the_context(tmp_path):
    """Logits of it need no position more, and neither does the one token that comes after it."""
    ids = ",".join(str(i) for i in range(10, 42))
    few = "--ctx", "32", "--kv-pages", "1", "--max-num-seqs", "1"
    out, _ = sluice("logits", FIXTURE, "--ids", ids, *few, "--npy", tmp_path / "l.npy", "--json")
    assert json.loads(out)["positions"] == 32
    one, _ = sluice("run", FIXTURE, "--ids", ids, *few, "-n", "1", "--json")
    more, _ = sluice("run", FIXTURE, "--ids", ids, "-n", "2", "--json")
    assert json.loads(one)["ids"] == json.loads(more)["ids"][:1]
    for verb, last in ("logits", ["--npy", tmp_path / "m.npy"]), ("run", ["-n", "1"]):
        err = refused(1, verb, FIXTURE, "--ids", ids + ",42", *few, *last)
        assert "33 positions, the context has 32" in err
    assert "2 take 33 positions" in refused(1, "run", FIXTURE, "--ids", ids, *few, "-n", "2")


# ---- one JSON document on stdout ----


def test_run_json():
    out, _ = sluice("run", FIXTURE, *IDS, "-n", "24", "--ignore-eos", "--temp", "0", "--json")
    doc = json.loads(out)
    assert set(doc) == {"prompt_ids", "ids", "text", "finish", "timings"}
    assert doc["prompt_ids"] == [3, 17, 41] and len(doc["ids"]) == 24 and doc["finish"] == "length"
    assert isinstance(doc["text"], str)
    assert set(doc["timings"]) == {"prompt_n", "cached_n", "ttft_ms", "n", "decode_ms", "tokens_per_s"}
    assert doc["timings"]["prompt_n"] == 3 and doc["timings"]["n"] == 24


def test_run_json_is_utf8_whatever_is_sampled():
    for seed in range(4):
        args = ["--temp", "5", "--seed", str(seed), "-n", "200", "--ignore-eos", "--json"]
        doc = json.loads(sluice("run", FIXTURE, *IDS, *args)[0])
        assert len(doc["ids"]) == 200


def test_run_text():
    text = json.loads(sluice("run", FIXTURE, *IDS, "-n", "9", "--ignore-eos", "--temp", "0", "--json")[0])["text"]
    out, err = sluice("run", FIXTURE, *IDS, "-n", "9", "--ignore-eos", "--temp", "0")
    assert out == text + "\n" and "[3 prompt tokens" in err and err.count("\n") == 1


def test_without_a_tokenizer(broken):
    for name in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]:
        (broken / name).unlink()
    doc = json.loads(sluice("run", broken, *IDS, "-n", "4", "--ignore-eos", "--json")[0])
    assert doc["text"] is None and len(doc["ids"]) == 4
    assert "tokenizer" in refused(1, "run", broken, "-p", "hello")


def test_inspect_json():
    doc = json.loads(sluice("inspect", FIXTURE, "--json")[0])
    config = json.loads((FIXTURE / "config.json").read_text())
    assert doc["folder"] == str(FIXTURE) and doc["architecture"] == config["architectures"][0]
    for ours, theirs in [("n_layers", "num_hidden_layers"), ("d_model", "hidden_size"), ("vocab", "vocab_size"),
                         ("n_heads", "num_attention_heads"), ("n_kv_heads", "num_key_value_heads"),
                         ("head_dim", "head_dim"), ("n_experts", "num_experts"), ("top_k", "num_experts_per_tok"),
                         ("d_ff_expert", "moe_intermediate_size"), ("max_position", "max_position_embeddings")]:
        assert doc[ours] == config[theirs], ours
    with open(FIXTURE / "model.safetensors", "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    head.pop("__metadata__", None)
    assert doc["tensors"] == len(head) and doc["files"] == 1 and doc["expert_dtype"] == "bf16"
    assert doc["n_params"] == sum(eval_product(t["shape"]) for t in head.values())
    assert doc["expert_bytes"] == 3 * config["hidden_size"] * config["moe_intermediate_size"] * 2
    assert doc["kv_bytes_per_token"] == 2 * 4 * 2 * 32 * KV[1]


def eval_product(shape):
    n = 1
    for s in shape:
        n *= s
    return n


def test_activations():
    assert "--activations bf16 or bf16-parts: of both in BF16" in sluice("inspect", FIXTURE)[0]
    assert "f32, int8, bf16, bf16-parts" in refused(2, "run", FIXTURE, *IDS, "--activations", "fp8")
    # the same ids on other deployments and by other kernels
    for how in ("bf16", "bf16-parts"):
        want = ids_of("--activations", how, "--isa", "ref")
        assert ids_of("--activations", how, "--attention", "1", "--experts", "2") == want


def test_inspect_counts_what_the_file_has():
    doc = json.loads(sluice("inspect", FIXTURE, "--json")[0])
    counted = doc["accounting"]
    assert counted["n_params"] == doc["n_params"] and counted["n_params_active"] == doc["n_params_active"]
    assert counted["weight_bytes"] == 2 * doc["n_params"] and counted["stages"]["expert"]["params"] * 2 == doc["expert_bytes"]


def test_inspect_a_description(tmp_path):
    doc = json.loads(sluice("inspect", "mixtral-8x7b", "--json")[0])
    assert doc["weights"] is False and doc["accounting"]["n_params"] == 46702792704
    bare = tmp_path / "some.json"
    bare.write_text((FIXTURE / "config.json").read_text())
    out, err = sluice("inspect", bare)
    assert err == "" and out.startswith("some.json: 4 blocks") and "this is a description" in out
    assert "671.026 B parameters, 37.552 B active" in sluice("inspect", "DeepSeek-V3")[0]


def test_inspect_shows_shared_experts():
    doc = json.loads(sluice("inspect", SHARED, "--json")[0])
    assert doc["d_ff_shared"] == 88 and doc["d_ff_dense"] == 104
    with open(SHARED / "model.safetensors", "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    assert doc["n_params"] == sum(eval_product(t["shape"]) for name, t in head.items() if name != "__metadata__")
    # five of eight experts of three blocks rest
    assert doc["n_params"] - doc["n_params_active"] == 3 * 5 * doc["expert_bytes"] // 2
    out, _ = sluice("inspect", SHARED)
    assert "shared        width 88, gated" in out and "head 16, biases" in out


def test_inspect_leaves_out_what_is_not_read():
    folder = ROOT / "tests" / "golden" / "glm4moe-tiny"
    doc = json.loads(sluice("inspect", folder, "--json")[0])
    with open(folder / "model.safetensors", "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    read = {name: t for name, t in head.items() if name != "__metadata__" and not name.startswith("model.layers.3.")}
    assert doc["n_params"] == sum(eval_product(t["shape"]) for t in read.values()) == doc["accounting"]["n_params"]
    out, _ = sluice("inspect", folder)
    assert "12 of a head rotated" in out and "from 2 of 4 groups" in out and "1 block more" in out
    assert "shared        width 64\n" in out


def test_inspect_text():
    out, err = sluice("inspect", FIXTURE, "--attention", "1", "--experts", "2")
    assert err == "" and "Qwen3MoeForCausalLM" in out
    assert out.count("expert: 4 experts") == 2 and "attention: 0 experts" in out


def test_bench_json():
    out, _ = sluice("bench", FIXTURE, "--n-prompt", "16", "--n-gen", "64", "--reps", "2", "--batch", "2", "--json")
    pp, tg = json.loads(out)
    for r in (pp, tg):
        assert {"model_filename", "n_params", "n_threads", "n_workers", "transport", "wire", "exact", "n_prompt", "n_gen",
                "n_batch", "n_depth", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "median_ts", "ranks_share",
                "samples_ns", "samples_ts"} == set(r)
        assert len(r["samples_ns"]) == len(r["samples_ts"]) == 2 and r["avg_ts"] > 0
    assert (pp["n_prompt"], pp["n_gen"]) == (16, 0) and (tg["n_prompt"], tg["n_gen"], tg["n_batch"]) == (0, 64, 2)
    only = json.loads(sluice("bench", FIXTURE, "--n-prompt", "0", "--n-gen", "4", "--reps", "1", "--json")[0])
    assert len(only) == 1 and only[0]["n_gen"] == 4


def test_bench_counts_whole_steps(tmp_path):
    """A step of a batch is measured with all of its tokens: it used to count one of the last step's, of a few steps too little."""
    slow = tmp_path / "device.json"  # steps of 60 ms, of which a busy machine hands out all tokens in the first half
    slow.write_text('{"attention": {"row": 1500}, "expert": {"row": 100}}')
    out, _ = sluice("bench", FIXTURE, "--n-prompt", "0", "--n-gen", "6", "--reps", "5", "--batch", "16", "--schedule", "ep", "--json",
                    "--device", f"emulated:{slow}")
    (tg,) = json.loads(out)
    tokens = sorted(ns * ts / 1e9 for ns, ts in zip(tg["samples_ns"], tg["samples_ts"]))
    assert tokens[-1] <= 16 * 6 + 0.1 and abs(tokens[2] - 16 * round(tokens[2] / 16)) < 0.1, tokens


def test_profile(tmp_path):
    path = tmp_path / "profile.json"
    for _ in range(3):  # where other programs run, rows of so small a model may seem to cost nothing
        out, _ = sluice("profile", FIXTURE, "--threads", "1", "-o", path, timeout=240)
        doc = json.loads(path.read_text())
        if all(stage["row"] > 0 for stage in doc["stages"].values()):
            break
    assert "expert " in out and "shm     to 1" in out and out.endswith(f"written to {path}\n")
    assert set(doc["stages"]) == {"attention", "router", "dense", "expert", "head"} and doc["threads"] == 1
    for stage in doc["stages"].values():
        assert stage["row"] > 0 and len(stage["points"]) >= 4 and stage["fit"]["r2"] <= 1
    for link in doc["links"]:
        assert link["alpha"] > 2 * link["work"] - 1e-3 and link["work"] >= 0 and (link["beyond"] > 0) == (link["knee_bytes"] > 0)
    assert {(link["transport"], link["peers"]) for link in doc["links"] if link["transport"] != "ucx"} == {
        (t, n) for t in ("loop", "shm", "tcp") for n in (1, 2, 4)}
    assert all(stage["bytes"] > 0 for stage in doc["stages"].values())
    assert "nowhere" in refused(1, "profile", tmp_path / "nowhere")


@pytest.mark.skipif(not sample.WHOLE, reason="a minute where caches are large: SLUICE_WHOLE, tests/long.py whole")
def test_profile_without_weights(tmp_path):
    """A config.json alone is measured with weights drawn at random."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_bytes((FIXTURE / "config.json").read_bytes())
    out, _ = sluice("profile", folder, "--threads", "1", "-o", tmp_path / "profile.json", timeout=240)
    doc = json.loads((tmp_path / "profile.json").read_text())
    assert "random weights" in out and doc["random_weights"]
    assert all(stage["bytes"] > 0 and stage["row"] > 0 for stage in doc["stages"].values())


def test_logits_npy(tmp_path):
    path = tmp_path / "logits.npy"
    doc = json.loads(sluice("logits", FIXTURE, *IDS, "--npy", path, "--json")[0])
    assert doc == {"positions": 3, "vocab": 1040, "file": str(path)}
    raw = path.read_bytes()
    assert raw[:8] == b"\x93NUMPY\x01\x00"
    n = struct.unpack("<H", raw[8:10])[0]
    head = ast.literal_eval(raw[10:10 + n].decode())
    assert head == {"descr": "<f4", "fortran_order": False, "shape": (3, 1040)}
    assert (10 + n) % 64 == 0 and len(raw) == 10 + n + 3 * 1040 * 4
    numpy = pytest.importorskip("numpy")
    logits = numpy.load(path)
    assert logits.dtype == numpy.float32 and logits.shape == (3, 1040) and numpy.isfinite(logits).all()
    greedy = json.loads(sluice("run", FIXTURE, *IDS, "-n", "1", "--temp", "0", "--ignore-eos", "--json")[0])["ids"]
    assert greedy == [int(logits[-1].argmax())]


def test_unwritable_files(tmp_path):
    assert "no/such" in refused(1, "logits", FIXTURE, *IDS, "--npy", tmp_path / "no/such")
    assert "no/such" in refused(1, "run", FIXTURE, *IDS, "--trace", tmp_path / "no/such")


# ---- the status line ----


def on_terminal(*args):
    """What the program writes to a terminal that is its stdout and stderr."""
    import pty

    pid, fd = pty.fork()
    if pid == 0:
        os.execv(SLUICE, [str(SLUICE), *map(str, args)])
    text = b""
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:
            break
        if not piece:
            break
        text += piece
    os.close(fd)
    assert os.waitpid(pid, 0)[1] == 0
    return text.decode()


def test_status_line(tmp_path):
    slow = tmp_path / "device.json"  # so that it lasts for seconds on any machine: the line comes every half of one
    slow.write_text('{"attention": {"row": 1500}, "expert": {"row": 1500}}')
    args = ["run", FIXTURE, *IDS, "-n", "70", "--ignore-eos", "--json", "--device", f"emulated:{slow}"]
    text = on_terminal(*args)
    lines = text.split("\r\033[K")
    assert len(lines) > 1 and all("tokens/s" in line for line in lines[1:-1])
    assert re.search(r"1 running, 0 waiting \| KV pages \d+/\d+ \| busy W0 \d+%", text), text
    assert json.loads(lines[-1])["finish"] == "length"
    assert "\033" not in on_terminal(*args, "--no-status")
    out, err = sluice(*args)
    assert "\033" not in out + err and err == ""


# ---- deployments ----


def ids_of(*args):
    return json.loads(sluice("run", FIXTURE, *IDS, "-n", "12", "--ignore-eos", "--temp", "0", "--exact", "--json", *args)[0])["ids"]


def spans_of(path):
    return [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"]


@pytest.mark.parametrize("transport", ["loop", "shm", "tcp"])
def test_trace(transport, tmp_path):
    path = tmp_path / "trace.json"
    got = ids_of("--attention", "1", "--experts", "2", "--transport", transport, "--trace", path)
    assert got == ids_of()
    doc = json.loads(path.read_text())
    named = {e["pid"]: e["args"]["name"] for e in doc["traceEvents"] if e["name"] == "process_name"}
    assert named == {0: "worker 0 (attention)", 1: "worker 1 (expert)", 2: "worker 2 (expert)", 100000: "links"}
    links = {e["args"]["name"] for e in doc["traceEvents"] if e["name"] == "thread_name" and e["pid"] == 100000}
    assert links >= {"0 -> 1", "0 -> 2", "1 -> 0", "2 -> 0"}
    spans = spans_of(path)
    assert {e["pid"] for e in spans if e["name"] in ("attention", "head", "experts")} == {0}
    assert {e["pid"] for e in spans if e["name"] == "expert"} == {1, 2}
    about = doc["otherData"]
    assert about["schedule"] == "dep" and about["transport"] == transport and about["messages_without_partner"] == 0
    for w in about["workers"]:
        assert w["dropped"] == 0 and w["same_clock"] and w["clock_error_us"] == 0 and "missing" not in w
    # the owner thread does one thing at a time and always something
    for pid in range(3):
        row = sorted((e["ts"], e["dur"]) for e in spans if e["pid"] == pid and e["tid"] == 0)
        for (ts, dur), (after, _) in zip(row, row[1:]):
            assert abs(ts + dur - after) < 0.002
    # every message arrives after it was sent
    assert all(e["args"]["latency_us"] > 0 for e in spans if e["pid"] == 100000)
    # the rows of an expert GEMM are those of its experts; each of 14 positions passes 2 experts a layer
    for e in (e for e in spans if e["name"] == "expert"):
        assert sum(e["args"]["experts"][1::2]) == e["args"]["rows"]
    steps = [e for e in spans if e["name"] == "step"]
    assert sum(e["args"]["tokens"] for e in steps) == 12 and sum(e["args"]["rows"] for e in steps) == 14


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    ids_of("--attention", "1", "--experts", "2", "--transport", "shm", "--trace", path)
    return path


def test_trace_stats(trace):
    """What the verb recomputes is what the file says, and every worker's time is accounted for."""
    got = json.loads(sluice("trace", trace, "--json")[0])
    spans = spans_of(trace)
    assert got["schedule"] == "dep" and got["transport"] == "shm" and got["tokens"] == 12 and got["steps"] == 12
    assert [w["name"] for w in got["workers"]] == ["worker 0 (attention)", "worker 1 (expert)", "worker 2 (expert)"]
    for w in got["workers"]:
        parts = sum(w[f"{c}_ms"] for c in ("execute", "pack", "send", "poll", "wait", "idle"))
        window = got["to_ms"] - got["from_ms"]
        assert abs(parts / window - 1) < 0.01, (w["name"], parts, window)
    rows = sum(e["args"]["rows"] for e in spans if e["name"] == "expert")
    assert sum(w["expert_rows"] for w in got["workers"]) == rows == sum(got["expert_rows"])
    assert sum(layer["expert_rows"] for layer in got["layers"]) == rows
    links = {link["name"]: link["messages"] for link in got["links"]}
    # On a busy machine an expert worker also says that it is.
    named = {e["tid"]: e["args"]["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["name"] == "thread_name" and e["pid"] == 100000}
    busy = sum(e["name"] == "BUSY" and named[e["tid"]] == "1 -> 0" for e in spans if e["pid"] == 100000)
    assert links["0 -> 1"] == links["1 -> 0"] - busy and set(links) >= {"0 -> 1", "0 -> 2", "1 -> 0", "2 -> 0"}
    text = sluice("trace", trace)[0]
    assert "12 tokens" in text and "worker 2 (expert)" in text and "bubble" in text
    middle = (got["from_ms"] + got["to_ms"]) / 2
    part = json.loads(sluice("trace", trace, "--json", "--from", got["from_ms"], "--to", middle)[0])
    assert part["tokens"] < 12 and part["to_ms"] == pytest.approx(middle)


def test_trace_svg(trace, tmp_path):
    import xml.etree.ElementTree as ET

    sluice("trace", trace, "--svg", tmp_path / "t.svg")
    text = (tmp_path / "t.svg").read_text()
    root = ET.fromstring(text)
    labels = "".join(root.itertext())
    assert "worker 0 (attention)" in labels and "link 0 -> 1" in labels and "micro-batch" not in labels
    assert len(root.findall(".//{http://www.w3.org/2000/svg}rect")) > 50
    assert sluice("trace", trace, "--svg", "-")[0] == text


def test_trace_refusals(tmp_path, trace):
    assert "no-such" in refused(1, "trace", tmp_path / "no-such.json")
    assert "trace file is missing" in refused(2, "trace")
    bad = tmp_path / "bad.json"
    bad.write_text("this is not JSON")
    assert "line 1" in refused(1, "trace", bad)
    bad.write_text("[]")
    assert "no worker" in refused(1, "trace", bad)
    assert "window" in refused(2, "trace", trace, "--from", "1e9")
    assert "--from" in refused(2, "trace", trace, "--from", "x")
    out = tmp_path / "no/such.svg"
    assert "no/such.svg" in refused(1, "trace", trace, "--svg", out)


def test_times_are_those_of_the_tokens():
    """A reader that was late finds many tokens at once; they were not made at once. No step takes less than 5 us."""
    out, _ = sluice("bench", FIXTURE, "--json", "--n-prompt", "8", "--n-gen", "16", "--reps", "20")
    prefill, decode = json.loads(out)
    assert min(decode["samples_ns"]) > 16 * 5000 and min(prefill["samples_ns"]) > 5000, out
    for _ in range(5):
        out, _ = sluice("run", FIXTURE, *IDS, "-n", "64", "--ignore-eos", "--json")
        timings = json.loads(out)["timings"]
        assert timings["decode_ms"] > 63 * 0.005 and timings["tokens_per_s"] < 200000, timings


def test_failed_outputs_leave_what_was_there(tmp_path, trace):
    """A picture, a trace and a converted model that fail; none of them removes or replaces anything."""
    kept = tmp_path / "kept"
    kept.write_text("kept")
    assert "not a trace" in refused(1, "trace", "/dev/null", "--svg", kept)
    folder = tmp_path / "not-a-model"
    folder.mkdir()
    refused(1, "convert", folder, kept, "--force")
    assert kept.read_text() == "kept" and sorted(p.name for p in tmp_path.iterdir()) == ["kept", "not-a-model"]
    out, err = sluice("run", FIXTURE, *IDS, "-n", "2", "--ignore-eos", "--trace", "/dev/full", code=1)
    assert "/dev/full" in err and "No space left" in err, err
    assert "/dev/full" in refused(1, "trace", trace, "--svg", "/dev/full")
    assert "is a folder" in refused(2, "trace", trace, "--svg", folder)


def test_outputs_keep_links_and_pipes(tmp_path, trace):
    file, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    file.write_text("old")
    link.symlink_to(file)
    sluice("trace", trace, "--svg", link)
    assert link.is_symlink() and file.read_text().startswith("<svg")
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    sluice("trace", trace, "--svg", pipe)
    assert reader.communicate(timeout=60)[0].decode() == file.read_text() and pipe.is_fifo()


def test_trace_of_another_clock(tmp_path):
    """A worker whose clock is 100,000 s off, as on another machine: its events fit those of the others."""
    off = ["unshare", "--time", "--monotonic", "100000"]
    if not shutil.which("unshare") or subprocess.run([*off, "true"], capture_output=True).returncode:
        pytest.skip("time namespaces are not allowed here")
    plan, path = tmp_path / "plan.json", tmp_path / "trace.json"
    plan.write_text(json.dumps({"version": 1, "schedule": "dep",
                                "workers": [{"roles": ["attention"]}, {"roles": ["expert"]}]}))
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "SLUICE_SECRET": "0123456789abcdef"}
    serve = subprocess.Popen([SLUICE, "serve", FIXTURE, "--remote", "--plan", plan, "--port", "0", "--fabric-port",
                              str(port), "--transport", "tcp", "--json", "--trace", path],
                             env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    join = [SLUICE, "worker", "--join", f"127.0.0.1:{port}", "--transport", "tcp", "--worker-id"]
    workers = [subprocess.Popen([*join, "0"], env=env, stderr=subprocess.DEVNULL),
               subprocess.Popen([*off, *join, "1"], env=env, stderr=subprocess.DEVNULL)]
    try:
        url = json.loads(serve.stdout.readline())["url"]
        body = json.dumps({"model": FIXTURE.name, "prompt": [3, 17, 41], "max_tokens": 12, "ignore_eos": True})
        request = urllib.request.Request(url + "/v1/completions", body.encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=60).read()
        serve.send_signal(signal.SIGINT)
        assert serve.wait(60) == 0
    finally:
        for p in (serve, *workers):
            p.kill()
            p.wait()
    doc = json.loads(path.read_text())
    near, far = doc["otherData"]["workers"]
    assert near["same_clock"] and not far["same_clock"]
    for offset in far["clock_offset_us"]:
        assert abs(offset + 100000e6) <= far["clock_error_us"]  # the bound that the file states holds
    assert 0 < far["clock_error_us"] < 5000
    spans = spans_of(path)
    tasks = [e for e in spans if e["name"] == "expert"]
    steps = [e for e in spans if e["name"] == "step"]
    assert tasks and steps
    slack = far["clock_error_us"]
    begin, end = min(e["ts"] for e in steps), max(e["ts"] + e["dur"] for e in steps)
    assert all(begin - slack <= e["ts"] and e["ts"] + e["dur"] <= end + slack for e in tasks)


def test_trace_keeps_the_last_events(tmp_path):
    path = tmp_path / "trace.json"
    out, err = sluice("run", FIXTURE, *IDS, "-n", "64", "--ignore-eos", "--trace", path, "--trace-events", "1024")
    assert "--trace-events" in err
    worker = json.loads(path.read_text())["otherData"]["workers"][0]
    assert worker["events"] == 1024 and worker["dropped"] > 100


def test_trace_starts_afresh(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("something else " * 10000)
    ids_of("--trace", path)
    assert spans_of(path)


PLAN = {
    "version": 1, "schedule": "dep", "wire": "bf16", "exact": True, "threads": 1,
    "workers": [{"roles": ["attention"]}, {"roles": ["expert"], "experts": [0, 2, 4, 6]},
                {"roles": ["expert"], "experts": [1, 3, 5, 7]}],
    "limits": {"max_num_seqs": 2, "max_num_batched_tokens": 7, "context": 64, "kv_pages": 4},
}


def test_plan_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    assert ids_of("--plan", path, "--transport", "tcp") == ids_of("--wire", "bf16")
    # What the plan says holds unless an option says otherwise; the last token takes no position.
    err = refused(1, "run", FIXTURE, *IDS, "--plan", path, "-n", "63")
    assert "the context has 64" in err
    assert len(json.loads(sluice("run", FIXTURE, *IDS, "--plan", path, "-n", "63", "--ctx", "128", "--ignore-eos", "--json")[0])["ids"]) == 63
    bench = json.loads(sluice("bench", FIXTURE, "--plan", path, "--n-prompt", "8", "--n-gen", "2", "--reps", "1", "--json")[0])
    assert bench[0]["wire"] == "bf16" and bench[0]["exact"] is True and bench[0]["n_threads"] == 1
    assert bench[0]["n_workers"] == 3
    bench = json.loads(sluice("bench", FIXTURE, "--plan", path, "--wire", "f32", "--threads", "2", "--n-prompt", "8",
                              "--n-gen", "2", "--reps", "1", "--json")[0])
    assert bench[0]["wire"] == "f32" and bench[0]["n_threads"] == 2


@pytest.mark.parametrize("change, code, text", [
    ({"workers": PLAN["workers"][:2]}, 3, "no worker hosts expert 1"),
    ({"workers": []}, 2, "0 workers"),
    ({"lanes": 9}, 2, "9 lanes"),
    ({"schedule": "ep"}, 2, "schedule ep is colocated"),
    ({"colour": "blue"}, 1, "colour"),
    ({"limits": {"kv_pages": 1}}, 3, "1 KV pages"),
])
def test_bad_plan_file(change, code, text, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**PLAN, **change}))
    assert text in refused(code, "run", FIXTURE, *IDS, "--plan", path)


def test_missing_plan_file(tmp_path):
    assert "none.json" in refused(1, "inspect", FIXTURE, "--plan", tmp_path / "none.json")


def test_plan_and_counts(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    err = refused(2, "run", FIXTURE, *IDS, "--plan", path, "--experts", "2")
    assert "--plan says who the workers are" in err


# ---- warm ----


def test_warm():
    got = json.loads(sluice("warm", FIXTURE, "--json")[0])
    files = sorted(FIXTURE.glob("*.safetensors"))
    assert [f["file"] for f in got] == [str(f) for f in files]
    assert [f["bytes"] for f in got] == [f.stat().st_size for f in files]
    assert all(0 <= f["huge"] <= f["bytes"] for f in got)
    assert not any(f["read_again"] for f in got)  # too small for large pages
    assert f"{files[0]}: 0." in (text := sluice("warm", FIXTURE)[0]) and "too small for pages of 2 MB" in text
    refused(1, "warm", ROOT / "no-such-model")


def test_warm_reads_into_large_pages(tmp_path):
    """What was written in small pieces is read again; where the system has no large pages, nothing is lost."""
    path = tmp_path / "model.safetensors"
    values = b"\0" * (16 << 20)
    head = json.dumps({"w": {"dtype": "F32", "shape": [len(values) // 4], "data_offsets": [0, len(values)]}}).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for _ in range(len(values) // 4096):
            f.write(values[:4096])
    (before,) = json.loads(sluice("warm", tmp_path, "--json")[0])
    assert before["bytes"] == 8 + len(head) + len(values)
    assert before["huge"] >= before["huge_before"] or not before["read_again"]
    if before["huge"] >= 0.9 * before["bytes"]:  # then the next finds it so
        (after,) = json.loads(sluice("warm", tmp_path, "--json")[0])
        assert not after["read_again"] and after["huge"] >= 0.9 * after["bytes"]


def test_warm_that_fails_prints_no_part_of_a_list(tmp_path):
    """The second file is larger than the address space that the process may have."""
    for name, n_values, size in (("a", 16, None), ("b", 1 << 32, 1 << 34)):
        head = json.dumps({name: {"dtype": "F32", "shape": [n_values], "data_offsets": [0, 4 * n_values]}}).encode()
        with open(tmp_path / f"model-{name}.safetensors", "wb") as f:
            f.write(struct.pack("<Q", len(head)) + head)
            f.truncate(8 + len(head) + (size or 4 * n_values))
    index = {"weight_map": {name: f"model-{name}.safetensors" for name in "ab"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    limit = (4 << 30, 4 << 30)
    done = subprocess.run([SLUICE, "warm", tmp_path, "--json"], capture_output=True, text=True, timeout=60,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit))
    if "Sanitizer" in done.stderr:
        pytest.skip("a sanitizer needs more addresses")
    assert done.returncode == 1 and done.stdout == "" and "model-b.safetensors: cannot map" in done.stderr


# ---- workers ----


def test_worker_alone():
    began = time.monotonic()
    _, err = sluice("worker", "--join", "127.0.0.1:9", "--join-timeout", "1", code=1)
    assert "sluice worker: no coordinator within 1 s: " in err and "127.0.0.1:9" in err
    assert "trying again for 1 s" in err
    assert 1 <= time.monotonic() - began < 20


def test_worker_before_its_coordinator(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        fabric = probe.getsockname()[1]
    secret = tmp_path / "secret"
    sluice("secret", "-o", secret)
    worker = subprocess.Popen([SLUICE, "worker", "--join", f"127.0.0.1:{fabric}", "--secret-file", secret],
                              stderr=subprocess.PIPE, text=True)
    time.sleep(1)
    assert worker.poll() is None
    coordinator = subprocess.Popen([SLUICE, "serve", FIXTURE, "--port", "0", "--remote", "--attention", "1",
                                    "--fabric-port", str(fabric), "--secret-file", secret],
                                   stderr=subprocess.PIPE, text=True)
    try:
        assert any("listening on" in line for line in coordinator.stderr)
        coordinator.terminate()
        assert coordinator.wait(20) == 0
        assert worker.wait(20) == 0, worker.stderr.read()
    finally:
        worker.kill()
        coordinator.kill()


def test_worker_joins_beside_a_flood(tmp_path):
    """Idle connections, from the worker's address and from another, take every place for callers before
    it comes, and go on coming."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        fabric = probe.getsockname()[1]
    secret, stop, held = tmp_path / "secret", threading.Event(), collections.deque(maxlen=500)  # 2.5 s of it
    sluice("secret", "-o", secret)

    def flood():
        while not stop.wait(0.04):
            for source in ["127.0.0.1", "127.0.0.2"] * 4:
                held.append(idle := socket.socket())
                idle.setblocking(False)
                idle.bind((source, 0))
                idle.connect_ex(("127.0.0.1", fabric))

    coordinator = subprocess.Popen([SLUICE, "serve", FIXTURE, "--port", "0", "--remote", "--attention", "1",
                                    "--fabric-port", str(fabric), "--secret-file", secret],
                                   stderr=subprocess.PIPE, text=True)
    thread = threading.Thread(target=flood)
    thread.start()
    time.sleep(1)
    worker = subprocess.Popen([SLUICE, "worker", "--join", f"127.0.0.1:{fabric}", "--secret-file", secret],
                              stderr=subprocess.PIPE, text=True)
    try:
        log = []
        for line in coordinator.stderr:
            log.append(line)
            if "listening on" in line:
                break
        assert "listening on" in log[-1], log
        coordinator.terminate()
        log += coordinator.communicate(timeout=20)[1].splitlines()
        assert coordinator.returncode == 0
        assert worker.wait(20) == 0, worker.stderr.read()
        assert 1 <= sum("turned away" in line for line in log) <= 100  # of hundreds a second
    finally:
        stop.set()
        thread.join()
        worker.kill()
        coordinator.kill()


def test_worker_open_to_the_network_needs_a_secret():
    err = refused(2, "worker", "--join", "127.0.0.1:9", "--fabric-host", "0.0.0.0")
    assert "listening there needs a secret" in err


def test_worker_with_a_bad_address():
    err = refused(2, "worker", "--join", "nowhere")
    assert "nowhere" in err


def test_secret_files(tmp_path):
    def refusal(code):
        return refused(code, "worker", "--join", "127.0.0.1:9", "--secret-file", secret)

    secret = tmp_path / "secret"
    assert str(secret) in refusal(1)
    secret.touch(0o600)
    for text in ["short\n", "x" * 15, "x" * 65]:
        secret.write_text(text)
        assert f"{secret}: a secret has 16 to 64 bytes" in refusal(2)
    secret.write_bytes(b"x" * 9 + b"\0" + b"x" * 20)
    assert "a secret is text, byte 9 is 0" in refusal(2)
    secret.write_text("x" * 64)
    for mode in [0o604, 0o640, 0o602, 0o644]:
        secret.chmod(mode)
        assert f"{secret}: mode {mode:04o} opens the secret to others: chmod 600 {secret}" in refusal(2)
    for mode in [0o400, 0o440] if os.geteuid() == 0 else [0o400]:  # 0440 of root's own: as systemd hands credentials over
        secret.chmod(mode)
        assert "nowhere" in refused(2, "worker", "--join", "nowhere", "--secret-file", secret)


def test_secret_is_made(tmp_path):
    secret = tmp_path / "secret"
    said, _ = sluice("secret", "--out", secret)
    made = secret.read_text()
    assert secret.stat().st_mode & 0o7777 == 0o600
    assert re.fullmatch("[0-9a-f]{64}\n", made) and made.strip() not in said
    printed, _ = sluice("secret")
    assert re.fullmatch("[0-9a-f]{64}\n", printed) and printed != made
    assert len(json.loads(sluice("secret", "--json")[0])["secret"]) == 64
    assert str(secret) in refused(1, "secret", "-o", secret)  # whoever holds the old one could join no more
    assert secret.read_text() == made
    assert "nowhere" in refused(2, "worker", "--join", "nowhere", "--secret-file", secret)


def test_workers_do_not_know_the_api_key(tmp_path):
    key, secret = "a key that is the server's alone", tmp_path / "secret"
    sluice("secret", "-o", secret)
    for args, env in [([], {"SLUICE_API_KEY": key}), (["--api-key", key], {"SLUICE_SECRET_FILE": str(secret)})]:
        server = subprocess.Popen([SLUICE, "serve", FIXTURE, "--port", "0", "--attention", "1", "--experts", "1",
                                   "--json", *args], env={**os.environ, **env}, stdout=subprocess.PIPE)
        try:
            assert server.stdout.readline()
            threads = pathlib.Path(f"/proc/{server.pid}/task").iterdir()
            children = [child for thread in threads for child in (thread / "children").read_text().split()]
            assert len(children) == 2
            for child in children:
                for what in ["environ", "cmdline"]:
                    there = pathlib.Path(f"/proc/{child}/{what}").read_bytes()
                    assert b"worker" in there or b"SLUICE_SECRET=" in there
                    assert key.encode() not in there and b"SLUICE_SECRET_FILE" not in there
            server.terminate()
            assert server.wait(20) == 0
        finally:
            server.kill()
            server.stdout.close()
