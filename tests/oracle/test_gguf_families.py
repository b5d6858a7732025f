"""GGUF files of the families that are not of the Llama line. Written by gguf-py (tools/py/gguf_families.py) or by
`sluice convert` they give the bits of their folder, and the ids of its golden; llama.cpp on the same file gives the same
logits nearly (SLUICE_LLAMA_CPP, as in test_gguf.py, whose fixture this takes).
"""

import importlib.util
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import time

import numpy
import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import check  # noqa: E402
import served  # noqa: E402

pytest.importorskip("gguf", reason="gguf-py (PyPI: gguf) is not installed")
from test_gguf import GOLDEN, LLAMA, SLUICE, convert, gguf_make, llama, logits  # noqa: E402, F401

IDS = [5, 77, 300, 12, 9, 400, 502, 33, 21, 8, 440, 77, *range(100, 140)]
# What the fixture has and its GGUF cannot say is left out.
FAMILIES = {
    "gptoss-tiny": {},
    "deepseekv2-tiny": {"rope_scaling.mscale": 0.707},
    "deepseekv3-tiny": {},
    "glm4moe-tiny": {},
    "olmoe-tiny": {"clip_qkv": None},
    "dbrx-tiny": {},
    "arctic-tiny": {},
    "qwen3next-tiny": {},
    "qwen3moe-tiny": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}},
}
# What llama.cpp takes whatever a file says: 1e-6 in norms of latents, whole pairs where YaRN blends, its betas.
LLAMA_CPP = {
    "gptoss-tiny": {"rope_theta": 5.0, "rope_scaling.original_max_position_embeddings": 128},
    "deepseekv2-tiny": {"rms_norm_eps": 1e-6, "topk_method": "greedy"},
}


def changed(folder, changes):
    config = json.loads((folder / "config.json").read_text())
    for key, value in changes.items():
        *path, last = key.split(".")
        at = config
        for part in path:
            at = at[part]
        at[last] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def copied(name, tmp_path, changes=None):
    shutil.copytree(GOLDEN / name, tmp_path / name)
    return changed(tmp_path / name, FAMILIES.get(name, {}) | (changes or {}))


def rewritten(folder, change):
    """Tensors as change(name, array) gives them: [(name, array)]."""
    tensors = [pair for name, w in gguf_make.load(folder).items() for pair in change(name, w)]
    gguf_make.write_safetensors(folder / "model.safetensors", tensors)
    return folder


def readable(name, tmp_path):
    """A copy whose values others can store: a rate of linear attention is e^A_log, which their programs round as they like."""
    folder = copied(name, tmp_path)
    if name == "qwen3next-tiny":
        rewritten(folder, lambda n, w: [(n, w * 0 if n.endswith("A_log") else w)])
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_converted_families_keep_their_bits(name, tmp_path):
    folder, out = copied(name, tmp_path), tmp_path / "m.gguf"
    convert(folder, out, "f32")
    assert logits(out, IDS).tobytes() == logits(folder, IDS).tobytes()
    for case in [] if FAMILIES[name] else check.golden_of(GOLDEN / name)["cases"]:
        check.check_greedy(SLUICE, out, case)


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "qwen3moe-tiny"])
def test_families_of_gguf_py_give_the_bits_of_safetensors(name, tmp_path):
    folder, out = readable(name, tmp_path), tmp_path / "m.gguf"
    gguf_make.write(out, folder, "F32")
    assert logits(out, IDS).tobytes() == logits(folder, IDS).tobytes()
    want = check.golden_of(GOLDEN / name)["cases"][0]
    text = json.loads(check.run(SLUICE, "run", out, "--ids", check.comma(want["prompt_ids"]), "-n", 8, "--temp", 0, "--json"))
    assert len(text["ids"]) == 8


@pytest.mark.parametrize("name,block", [("glm4moe-tiny", 3), ("qwen3next-tiny", 4)])
def test_blocks_behind_the_last_are_not_read(name, block, tmp_path):
    folder = readable(name, tmp_path)
    gguf_make.write(tmp_path / "m.gguf", folder, "F32", further=True)
    assert b"blk.%d.nextn.eh_proj.weight" % block in (tmp_path / "m.gguf").read_bytes()
    assert logits(tmp_path / "m.gguf", IDS).tobytes() == logits(folder, IDS).tobytes()


# An answer so short never waits for what the front end has seen of it (SL_MAX_AHEAD), so that the guesses do not depend on how busy the machine is.
SHORT = 24


def guesses_of(model, cases):
    """What a server says to each prompt, and how many rows of its block's guesses there were and were right."""
    server = served.Server(model, "--exact", "--activations", "f32", "--speculate", "mtp-always", "--transport", "loop")
    said = []
    for case in cases:
        body = {"model": "m", "prompt": case["prompt_ids"], "max_tokens": SHORT, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        said.append(json.loads(server.request("POST", "/v1/completions", body).read())["choices"][0]["token_ids"])
    counts, since, end = None, time.monotonic(), time.monotonic() + 30
    while time.monotonic() < min(since + 2, end):  # workers report twice a second, later on a busy machine
        now = [server.metrics(f"worker_guesses_{n}")[0] for n in ("total", "right_total")]
        if now != counts or not now[0]:
            counts, since = now, time.monotonic()
        time.sleep(0.1)
    assert server.stop() == 0
    return said, *counts


@pytest.mark.parametrize("name", ["glm4moe-tiny", "deepseekv3-tiny", "qwen3next-tiny"])
def test_the_block_behind_the_last_guesses_the_same(name, tmp_path):
    gguf_make.write(tmp_path / "m.gguf", GOLDEN / name, "F32", further=True)
    cases = check.golden_of(GOLDEN / name)["cases"]
    ids, guesses, right = guesses_of(GOLDEN / name, cases)
    assert ids == [c["greedy_ids"][:SHORT] for c in cases]
    assert guesses > right > 0.05 * guesses
    assert guesses_of(tmp_path / "m.gguf", cases) == (ids, guesses, right)


@pytest.mark.parametrize("name", ["deepseekv2-tiny", "deepseekv3-tiny"])
def test_latents_in_one_tensor_are_read(name, tmp_path):
    """As files of before 2025 have them. The folder's F8 values are products of their scales there."""
    folder = copied(name, tmp_path)
    gguf_make.write(tmp_path / "m.gguf", folder, "F32", whole_latents=True)
    assert logits(tmp_path / "m.gguf", IDS).tobytes() == logits(folder, IDS).tobytes()


@pytest.mark.parametrize("whole", [False, True])
def test_linear_attention_is_read_in_both_orders(whole, tmp_path):
    """Older files have queries, keys, values and gates in one tensor, as checkpoints do. Rates are numpy's e^A_log."""
    folder = GOLDEN / "qwen3next-tiny"
    gguf_make.write(tmp_path / "m.gguf", folder, "F32", whole_delta=whole)
    assert (b"blk.0.ssm_in.weight" in (tmp_path / "m.gguf").read_bytes()) == whole
    assert check.deviation(logits(tmp_path / "m.gguf", IDS), logits(folder, IDS))[0] <= 1e-5


@pytest.mark.parametrize("further", [False, True])
def test_an_entry_a_block_says_which_are_linear(further, tmp_path):
    folder, types = readable("qwen3next-tiny", tmp_path), ["linear_attention"] * 3 + ["full_attention"]
    changed(folder, {"layer_types": types, "full_attention_interval": 2})
    gguf_make.write(tmp_path / "m.gguf", folder, "F32", further=further)
    assert logits(tmp_path / "m.gguf", IDS).tobytes() == logits(folder, IDS).tobytes()
    changed(folder, {"layer_types": types[1:]})
    gguf_make.write(tmp_path / "bad.gguf", folder, "F32", further=further)
    with pytest.raises(check.Failure, match=f"attention.recurrent_layers: {3 + further} entries for {4 + further} blocks"):
        logits(tmp_path / "bad.gguf", [1, 2])


@pytest.mark.parametrize("kind,whole", [("Q8_0", False), ("Q8_0", True), ("Q5_0", False), ("IQ4_NL", False), ("BF16", False)])
def test_linear_attention_in_blocks_gives_the_bits_of_its_values(kind, whole, tmp_path):
    from gguf import GGUFReader

    folder, blocks, plain = GOLDEN / "qwen3next-tiny", tmp_path / "blocks.gguf", tmp_path / "f32.gguf"
    gguf_make.write(blocks, folder, kind, whole_delta=whole)
    gguf_make.write(plain, folder, "F32", rounded=kind, whole_delta=whole)
    kinds = {t.name: t.tensor_type.name for t in GGUFReader(blocks).tensors}
    for name in ["ssm_in"] if whole else ["attn_qkv", "attn_gate"]:
        assert kinds[f"blk.0.{name}.weight"] == kinds["blk.0.ssm_out.weight"] == kinds["blk.0.ssm_ba.weight"] == kind
    assert logits(blocks, IDS).tobytes() == logits(plain, IDS).tobytes()


@pytest.mark.parametrize("name", FAMILIES)
def test_blocks_of_families_run(name, tmp_path):
    folder, out = copied(name, tmp_path), tmp_path / "m.gguf"
    convert(folder, out, "q8_0")
    same = logits(out, IDS).argmax(-1) == logits(folder, IDS).argmax(-1)
    assert same.mean() >= 0.8
    alone = check.sluice_greedy(SLUICE, out, IDS[:8], 8, ["--exact"])["ids"]
    apart = check.sluice_greedy(SLUICE, out, IDS[:8], 8, ["--exact", "--attention", "1", "--experts", "2"])["ids"]
    assert alone == apart and len(alone) == 8


def test_experts_keep_their_mxfp4(tmp_path):
    from gguf import GGUFReader

    folder = GOLDEN / "gptoss-tiny"
    report = convert(folder, tmp_path / "m.gguf", "mxfp4")
    kinds = {t.name: t.tensor_type.name for t in GGUFReader(tmp_path / "m.gguf").tensors}
    assert report["type"] == "MXFP4" and kinds["blk.1.ffn_up_exps.weight"] == "MXFP4"
    assert kinds["token_embd.weight"] == "Q8_0" and kinds["blk.0.ffn_up_exps.bias"] == "F32"

    def pick(name, w):  # plain but for the experts: the folder's own values
        return gguf_make.T.MXFP4 if name.endswith("_exps.weight") else None

    gguf_make.write(tmp_path / "plain.gguf", folder, "F32", pick)
    assert logits(tmp_path / "plain.gguf", IDS).tobytes() == logits(folder, IDS).tobytes()


def test_mxfp4_is_multiplied_as_integers(tmp_path):
    """By default, as other blocks are: near the products of floats, the folder's the same as a file's, whoever has the experts."""
    folder, out = GOLDEN / "gptoss-tiny", tmp_path / "m.gguf"
    gguf_make.write(out, folder, "F32", lambda name, w: gguf_make.T.MXFP4 if name.endswith("_exps.weight") else None)
    exact, rounded = logits(folder, IDS), logits(folder, IDS, [])
    off = numpy.sqrt(((rounded - exact) ** 2).mean() / (exact**2).mean())
    assert 0 < off < 0.03
    assert logits(out, IDS, []).tobytes() == rounded.tobytes()
    apart = ["--attention", "1", "--experts", "2"]
    alone = logits(folder, IDS, ["--exact"])
    assert logits(folder, IDS, ["--exact", *apart]).tobytes() == alone.tobytes()
    assert logits(folder, IDS, ["--exact", "--isa", "ref"]).tobytes() == alone.tobytes()


def test_inspect_counts_what_the_folder_has(tmp_path):
    for name in FAMILIES:
        folder, out = copied(name, tmp_path), tmp_path / f"{name}.gguf"
        convert(folder, out, "bf16")
        of = [json.loads(check.run(SLUICE, "inspect", m, "--json")) for m in (folder, out)]
        for key in ("n_params", "n_params_active", "kv_bytes_per_token", "d_ff_shared", "n_moe_layers", "max_position"):
            assert of[0][key] == of[1][key], (name, key)
        counted = [o["accounting"] for o in of]
        for key in ("n_params", "n_params_active", "kv_bytes_per_token", "flops_per_token"):
            assert counted[0][key] == counted[1][key], (name, key)


def whole_blocks(tmp_path):
    """A DeepSeek-V3 of random values whose rows, those of W_UK and W_UV too, are whole blocks of 32."""
    folder = copied("deepseekv3-tiny", tmp_path)
    c = {"kv_lora_rank": 32, "q_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
         "num_nextn_predict_layers": 0, "moe_intermediate_size": 32, "intermediate_size": 96}  # fmt: skip
    changed(folder, c)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    rng, tensors, d = numpy.random.default_rng(5), [], 64
    shapes = {
        "q_a_proj": (64, d), "q_b_proj": (4 * 48, 64), "kv_a_proj_with_mqa": (32 + 16, d), "kv_b_proj": (4 * 64, 32),
        "o_proj": (d, 4 * 32), "q_a_layernorm": (64,), "kv_a_layernorm": (32,), "gate_proj": (96, d), "up_proj": (96, d),
        "down_proj": (d, 96), "experts.gate_proj": (32, d), "experts.up_proj": (32, d), "experts.down_proj": (d, 32),
    }  # fmt: skip
    for name, w in gguf_make.load(GOLDEN / "deepseekv3-tiny").items():
        part = name.split(".")[-2]
        key = ("experts." if "experts." in name else "") + part
        if name.endswith("_scale_inv") or ".layers.3." in name:
            continue
        if shape := shapes.get(key):
            w = rng.standard_normal(shape).astype("<f4") / numpy.float32(shape[-1]) ** 0.5
            w = w if len(shape) > 1 else 1 + w / 10
        tensors.append((name, w))
    gguf_make.write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.mark.parametrize("kind,whole", [("Q8_0", False), ("Q8_0", True), ("Q5_0", False), ("Q5_0", True), ("IQ4_NL", False)])
def test_latents_in_blocks_give_the_bits_of_their_values(kind, whole, tmp_path):
    folder, blocks, plain = whole_blocks(tmp_path), tmp_path / "blocks.gguf", tmp_path / "f32.gguf"
    gguf_make.write(blocks, folder, kind, whole_latents=whole)
    gguf_make.write(plain, folder, "F32", rounded=kind, whole_latents=whole)
    assert logits(blocks, IDS).tobytes() == logits(plain, IDS).tobytes()
    near, exact = logits(blocks, IDS, ()), logits(plain, IDS)
    assert 0 < numpy.sqrt(((near - exact) ** 2).mean() / (exact**2).mean()) < 0.3


# ---- what is refused ----


@pytest.mark.parametrize(
    "name,changes,says",
    [
        ("olmoe-tiny", {"clip_qkv": 1.25}, "clip_qkv"),
        ("olmoe-tiny", {"norm_topk_prob": True}, "sum to 1"),
        ("deepseekv2-tiny", {"rope_scaling.mscale": 1.0}, "mscale other than mscale_all_dim"),
        ("deepseekv3-tiny", {"rope_interleave": False}, "rope_interleave false"),
        ("gptoss-tiny", {"rope_scaling.truncate": True}, "truncate"),
        ("gptoss-tiny", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "layer_types"),
        ("dbrx-tiny", {"ffn_config.moe_normalize_expert_weights": None}, "as they are"),
        ("qwen3next-tiny", {"norm_topk_prob": False}, "as they are"),
    ],
)
def test_what_files_cannot_say_is_refused(name, changes, says, tmp_path):
    with pytest.raises(check.Failure, match=f"GGUF of [a-z0-9-]+ cannot say: .*{re.escape(says)}"):
        convert(copied(name, tmp_path, changes), tmp_path / "m.gguf", "f32")
    assert not (tmp_path / "m.gguf").exists()


def test_other_orders_of_linear_blocks_are_not_written(tmp_path):
    folder = copied("qwen3next-tiny", tmp_path, {"layer_types": ["full_attention", *["linear_attention"] * 3], "mlp_only_layers": [2]})
    rewritten(folder, lambda n, w: [(re.sub(r"^model\.layers\.(\d)", lambda m: f"model.layers.{(int(m[1]) + 1) % 4}", n), w)])
    with pytest.raises(check.Failure, match="GGUF of qwen3next cannot say: layer_types"):
        convert(folder, tmp_path / "m.gguf", "f32")


def u32(key, value):
    return key.encode() + struct.pack("<II", 4, value)


def f32(key, value):
    return key.encode() + struct.pack("<If", 6, value)


@pytest.mark.parametrize(
    "name,before,after,says",
    [
        ("deepseekv3-tiny", u32("expert_gating_func", 2), u32("expert_gating_func", 4),
         "deepseek2.expert_gating_func: 4 is not supported here, only 1 and 2"),
        ("glm4moe-tiny", u32("expert_gating_func", 2), u32("expert_gating_func", 1), "1 is not supported here, only 2"),
        ("glm4moe-tiny", u32("leading_dense_block_count", 1), u32("leading_dense_block_count", 2),
         "2, but the first block with a router is 1"),
        ("glm4moe-tiny", u32("rope.dimension_count", 12), u32("rope.dimension_count", 11), "11 must be even"),
        ("glm4moe-tiny", u32("expert_group_count", 4), u32("expert_group_count", 5), "5 does not cut 12 experts"),
        ("glm4moe-tiny", u32("expert_shared_count", 2), u32("expert_shared_count", 0), "expert_shared_count"),
        ("glm4moe-tiny", b"blk.1.exp_probs_b.bias", b"blk.1.exp_probs_c.bias", "blk.1.exp_probs_b.bias"),
        ("deepseekv2-tiny", b"yarn_log_multiplier", b"yarn_log_multiplies", "yarn_log_multiplies: unknown key"),
        ("deepseekv2-tiny", u32("attention.key_length", 28), u32("attention.key_length", 30), "only 28"),
        ("deepseekv2-tiny", u32("attention.kv_lora_rank", 20), u32("attention.kv_lora_rank", 2000), "kv_lora_rank"),
        ("gptoss-tiny", b"\x04\0\0\0\0\0\0\0yarn", b"\x04\0\0\0\0\0\0\0yorn", '"yorn" is not supported (supported: "none", "yarn")'),
        ("gptoss-tiny", f32("rope.scaling.yarn_beta_fast", 32), f32("rope.scaling.yarn_beta_fast", 0.5), "is above"),
        ("gptoss-tiny", b"blk.2.attn_sinks.weight", b"blk.2.attn_sanks.weight", "blk.2.attn_sinks.weight"),
        ("dbrx-tiny", b"dbrx.attention.layer_norm_epsilon", b"dbrx.attention.layer_nurm_epsilon", "unknown key"),
        ("dbrx-tiny", b"blk.1.attn_qkv.weight\2\0\0\0" + struct.pack("<QQ", 56, 112),
         b"blk.1.attn_qkv.weight\2\0\0\0" + struct.pack("<QQ", 112, 56), "shape [56, 112], expected [112, 56]"),
        ("qwen3next-tiny", u32("ssm.inner_size", 96), u32("ssm.inner_size", 98), "ssm.inner_size: 98 values of 4 heads"),
        ("qwen3next-tiny", u32("ssm.time_step_rank", 4), u32("ssm.time_step_rank", 3), "as many for each of the 2"),
        ("qwen3next-tiny", u32("ssm.conv_kernel", 4), u32("ssm.conv_kernel", 9), "ssm.conv_kernel: 9"),
        ("qwen3next-tiny", u32("full_attention_interval", 4), u32("full_attention_interval", 3), "blk.2.attn_q.weight"),
        ("qwen3next-tiny", b"qwen3next.ssm.group_count", b"qwen3next.ssm.dt_b_c_rms.", "unknown key"),
        ("qwen3next-tiny", b"blk.2.attn_gate.weight", b"blk.2.attn_gata.weight", "blk.2.attn_gate.weight"),
        ("olmoe-tiny", b"olmoe.expert_used_count", b"olmoe.attention.clampqk", "olmoe.attention.clampqk: unknown key"),
    ],
)  # fmt: skip
def test_damaged_families_are_refused(name, before, after, says, tmp_path):
    convert(copied(name, tmp_path), tmp_path / "m.gguf", "f32")
    raw = (tmp_path / "m.gguf").read_bytes()
    assert raw.count(before) == 1 and len(before) == len(after)
    (tmp_path / "bad.gguf").write_bytes(raw.replace(before, after))
    with pytest.raises(check.Failure, match=f"exit [12]: .*bad.gguf.*{re.escape(says)}"):
        logits(tmp_path / "bad.gguf", [1, 2])


# ---- llama.cpp ----


def routed_arctic(tmp_path):
    """arctic-tiny without its dense blocks, which llama.cpp does not know."""
    folder = copied("arctic-tiny", tmp_path, {"moe_layer_frequency": 1, "num_hidden_layers": 2})
    tensors = []
    for name, w in gguf_make.load(folder).items():
        if layer := re.match(r"model\.layers\.(\d+)", name):
            if int(layer[1]) % 2 == 0:
                continue
            name = name.replace(layer[0], f"model.layers.{int(layer[1]) // 2}")
        tensors.append((name, w))
    gguf_make.write_safetensors(folder / "model.safetensors", tensors)
    return folder


def whole_olmoe(tmp_path):
    """olmoe-tiny with as many heads of keys as of queries, which is what llama.cpp takes: its own, each twice."""
    folder = copied("olmoe-tiny", tmp_path, {"num_key_value_heads": 4})
    tensors = []
    for name, w in gguf_make.load(folder).items():
        if re.search(r"\.([kv]_proj|k_norm)\.", name):
            w = w.reshape(2, 16, -1).repeat(2, 0).reshape(64, *w.shape[1:])
        tensors.append((name, w))
    gguf_make.write_safetensors(folder / "model.safetensors", tensors)
    return folder


def even_qwen3next(tmp_path):
    """qwen3next-tiny without its dense block, and with values as wide as keys: llama.cpp knows no others. Rates are 1."""
    folder = copied("qwen3next-tiny", tmp_path, {"mlp_only_layers": [], "num_hidden_layers": 3, "full_attention_interval": 3,
                                                 "linear_value_head_dim": 16})  # fmt: skip

    def narrow(w, axis, before, heads):  # of each head's 24 values the first 16, behind what comes before them
        head, rest = numpy.split(w, [before], axis)
        part = rest.reshape(*w.shape[:axis], heads, 24, *w.shape[axis + 1 :]).take(range(16), axis + 1)
        return numpy.concatenate([head, part.reshape(*w.shape[:axis], heads * 16, *w.shape[axis + 1 :])], axis)

    def change(name, w):
        if name.startswith("model.layers.1."):
            return []
        if name.endswith("A_log"):
            w = w * 0
        if name.endswith("in_proj_qkvz.weight"):
            w = numpy.concatenate([narrow(w[at : at + 128], 0, 32, 4) for at in (0, 128)])
        if name.endswith("conv1d.weight"):
            w = narrow(w, 0, 64, 4)
        if name.endswith("linear_attn.norm.weight"):
            w = w[:16]
        if name.endswith("linear_attn.out_proj.weight"):
            w = narrow(w, 1, 0, 4)
        return [(re.sub(r"^model\.layers\.([23])", lambda m: f"model.layers.{int(m[1]) - 1}", name), w)]

    return rewritten(folder, change)


FOR_LLAMA = {"arctic-tiny": routed_arctic, "olmoe-tiny": whole_olmoe, "qwen3next-tiny": even_qwen3next}


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "qwen3moe-tiny"])
def test_llama_cpp_agrees_on_families(name, tmp_path, llama):  # noqa: F811
    make = FOR_LLAMA.get(name)
    folder = make(tmp_path) if make else copied(name, tmp_path, LLAMA_CPP.get(name))
    convert(folder, tmp_path / "m.gguf", "f32")
    theirs, ours = llama(tmp_path / "m.gguf", IDS), logits(tmp_path / "m.gguf", IDS)
    worst = check.deviation(theirs, ours)[0]
    print(f"{name}: largest deviation {worst:.2g}")
    assert worst <= check.BAR and (theirs.argmax(-1) == ours.argmax(-1)).all()
    assert numpy.isfinite(ours).all()


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "qwen3moe-tiny"])
def test_files_of_llama_cpps_converter_give_the_bits_of_safetensors(name, tmp_path):
    if not LLAMA or not all(importlib.util.find_spec(m) for m in ("torch", "transformers")):
        pytest.skip("SLUICE_LLAMA_CPP names no llama.cpp, or its converter lacks torch and transformers")
    make = FOR_LLAMA.get(name) if name != "olmoe-tiny" else None
    folder = make(tmp_path) if make else copied(name, tmp_path)
    pre = {"gptoss-tiny": "gpt-4o", "dbrx-tiny": "dbrx", "arctic-tiny": "smollm"}.get(name, "qwen2")
    command = [sys.executable, HERE / "llama_convert.py", LLAMA, folder, tmp_path / "m.gguf", pre]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert logits(tmp_path / "m.gguf", IDS).tobytes() == logits(folder, IDS).tobytes()
    text = "And he said unto them, 1234"
    ids = [json.loads(check.run(SLUICE, "run", m, "-p", text, "-n", 1, "--json"))["prompt_ids"] for m in (folder, tmp_path / "m.gguf")]
    assert ids[0] == ids[1]
