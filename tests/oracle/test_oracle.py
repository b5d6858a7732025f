"""sluice against the goldens (see check.py), and the test of that test (see swap_experts.py).

The binary comes from SLUICE_BIN, default build/sluice.
"""

import json
import os
import pathlib
import shutil
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import check  # noqa: E402
import numpy  # noqa: E402
import reference  # noqa: E402
import sample  # noqa: E402
import swap_experts  # noqa: E402

SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", HERE.parents[1] / "build" / "sluice")).resolve()
FIXTURES = {path.name: path for path in check.fixtures()}
CASES = {name: [case["name"] for case in check.golden_of(path)["cases"]] for name, path in FIXTURES.items()}


ALL = [(name, case) for name, own in CASES.items() for case in own]


def cases(turn):
    """Fixtures with each of their cases; of a sample with one, another one in each turn. unit.model_golden has all of them."""
    return [(name, case) for i, (name, own) in enumerate(CASES.items()) for case in sample.of(own, (i + turn) % len(own))]


def case_of(fixture, name):
    return next(c for c in check.golden_of(FIXTURES[fixture])["cases"] if c["name"] == name)


def test_fixtures_are_there():
    assert {"qwen3moe-tiny", "mixtral-tiny", "qwen3moe-sparse", "qwen2moe-tiny",
            "olmoe-tiny", "glm4moe-tiny", "llama4-tiny", "deepseekv2-tiny", "deepseekv3-tiny", "dbrx-tiny",
            "arctic-tiny", "gptoss-tiny", "qwen3next-tiny"} <= set(FIXTURES)
    assert SLUICE.is_file(), f"{SLUICE} is not built"


@pytest.mark.parametrize("fixture,case", ALL)
def test_golden_belongs_to_the_stored_weights(fixture, case):
    golden = case_of(fixture, case)
    least = check.golden_of(FIXTURES[fixture]).get("least_router_margin", 1e-3)
    model = reference.model_of(FIXTURES[fixture])
    got = model.forward(golden["prompt_ids"] + golden["greedy_ids"])
    ref = numpy.load(FIXTURES[fixture] / golden["logits"], allow_pickle=False)
    assert check.deviation(got.astype(numpy.float32), ref)[0] <= 1e-5
    assert got[len(golden["prompt_ids"]) - 1 : -1].argmax(-1).tolist() == golden["greedy_ids"]
    assert abs(model.min_margin - golden["min_router_margin"]) <= 1e-5
    assert model.min_margin >= least and golden["min_top1_gap"] >= 1e-2


@pytest.mark.parametrize("fixture,case", cases(0))
def test_logits_equal_the_golden(fixture, case):
    check.check_logits(SLUICE, FIXTURES[fixture], case_of(fixture, case))


@pytest.mark.parametrize("fixture,case", cases(1))
def test_greedy_ids_equal_the_golden(fixture, case):
    check.check_greedy(SLUICE, FIXTURES[fixture], case_of(fixture, case))


def test_variants_are_there():
    assert [path.name for path in check.variants()] == ["qwen3moe-yarn"]


@pytest.mark.parametrize("variant", check.variants(), ids=lambda path: path.name)
def test_goldens_of_other_configurations(variant):
    golden = check.golden_of(variant)
    with check.checkpoint(variant) as folder:
        for case in golden["cases"]:
            check.check_logits(SLUICE, folder, case)
            check.check_greedy(SLUICE, folder, case)
            model = reference.Model(folder)
            got = model.forward(case["prompt_ids"] + case["greedy_ids"]).astype(numpy.float32)
            ref = numpy.load(variant / case["logits"], allow_pickle=False)
            assert check.deviation(got, ref)[0] <= 1e-5
            assert model.min_margin >= golden["least_router_margin"]


@pytest.mark.parametrize("fixture", [name for name in FIXTURES if name.startswith("qwen")])
def test_router_weights_rescaled_or_not(fixture, tmp_path):
    """The other value of norm_topk_prob than the fixture's, against the second oracle."""
    folder = tmp_path / fixture
    shutil.copytree(FIXTURES[fixture], folder)
    config = json.loads((folder / "config.json").read_text())
    config["norm_topk_prob"] = not config["norm_topk_prob"]
    (folder / "config.json").write_text(json.dumps(config))
    ids = case_of(fixture, "line")["prompt_ids"]
    model = reference.model_of(folder)
    want = model.forward(ids)
    assert model.min_margin >= 1e-4, "a near tie decides"
    got = check.sluice_logits(SLUICE, folder, ids, check.EXACT)
    assert check.deviation(got, want.astype(numpy.float32))[0] <= 2e-4


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    "fixture,change",
    [
        ("qwen3moe-tiny", {"rope_scaling": YARN}),
        ("qwen3moe-tiny", {"rope_scaling": YARN | {"beta_fast": 6, "beta_slow": 2, "attention_factor": 1.5}}),
        ("olmoe-tiny", {"norm_topk_prob": True}),
        ("olmoe-tiny", {"clip_qkv": None}),
        ("glm4moe-tiny", {"norm_topk_prob": False}),
        ("glm4moe-tiny", {"routed_scaling_factor": 1.0}),
        ("glm4moe-tiny", {"partial_rotary_factor": 1.0}),
        ("glm4moe-tiny", {"topk_group": 4}),
        ("glm4moe-tiny", {"n_group": 1, "topk_group": 1}),
        ("llama4-tiny", {"num_experts_per_tok": 3}),
        ("llama4-tiny", {"use_qk_norm": False}),
        ("llama4-tiny", {"attn_temperature_tuning": False}),
        ("llama4-tiny", {"attention_chunk_size": 16}),
        ("llama4-tiny", {"rope_scaling": None}),
        ("llama4-tiny", {"no_rope_layers": [0, 1, 1, 0]}),
        ("deepseekv2-tiny", {"rope_scaling": None}),
        ("deepseekv2-tiny", {"rope_scaling": {"mscale": 0.7, "mscale_all_dim": 1.0} | YARN}),
        ("deepseekv2-tiny", {"topk_method": "greedy", "n_group": None, "topk_group": None}),
        ("deepseekv2-tiny", {"routed_scaling_factor": 1.0}),
        ("deepseekv3-tiny", {"rope_interleave": False}),
        ("deepseekv3-tiny", {"norm_topk_prob": False}),
        ("deepseekv3-tiny", {"rope_scaling": None}),
        ("dbrx-tiny", {"ffn_config": {"moe_normalize_expert_weights": None}}),
        ("dbrx-tiny", {"attn_config": {"clip_qkv": None}}),
        ("dbrx-tiny", {"attn_config": {"rope_theta": 10000}}),
        ("arctic-tiny", {"rope_theta": 1e6}),
        ("qwen3next-tiny", {"partial_rotary_factor": 1.0}),
        ("qwen3next-tiny", {"rope_theta": 100}),
        ("qwen3next-tiny", {"rope_scaling": YARN}),
        ("gptoss-tiny", {"sliding_window": 7}),
        ("gptoss-tiny", {"sliding_window": 7, "layer_types": ["full_attention"] + ["sliding_attention"] * 2}),
        ("gptoss-tiny", {"rope_scaling": YARN | {"truncate": True}}),
        ("gptoss-tiny", {"rope_scaling": YARN | {"truncate": False}}),
    ],
)
def test_options_off(fixture, change, tmp_path):
    """Another value of an option changes the logits, and to what the second oracle says."""
    folder = tmp_path / fixture
    shutil.copytree(FIXTURES[fixture], folder)
    config = json.loads((folder / "config.json").read_text())
    change = {k: config[k] | v if isinstance(v, dict) and isinstance(config.get(k), dict) else v for k, v in change.items()}
    (folder / "config.json").write_text(json.dumps(config | change))
    case = case_of(fixture, "line")
    ids = case["prompt_ids"]
    model = reference.model_of(folder)
    want = model.forward(ids).astype(numpy.float32)
    assert model.min_margin >= 1e-5, "a near tie decides"
    got = check.sluice_logits(SLUICE, folder, ids, check.EXACT)
    assert check.deviation(got, want)[0] <= 2e-4
    golden = numpy.load(FIXTURES[fixture] / case["logits"], allow_pickle=False)[: len(ids)]
    assert check.deviation(got, golden)[0] > 1e-3


@pytest.mark.parametrize("fixture", FIXTURES)
def test_generation_ends_at_a_stop_id(fixture):
    stop = check.golden_of(FIXTURES[fixture])["stop_case"]
    if stop is None:
        pytest.skip(f"{fixture} has no chat template, so no stop case")
    check.check_stop(SLUICE, FIXTURES[fixture], stop)


@pytest.mark.parametrize("fixture", FIXTURES)
def test_swapped_experts_change_the_greedy_ids(fixture, tmp_path):
    golden = check.golden_of(FIXTURES[fixture])
    test = golden["swap_test"]
    swapped = tmp_path / fixture
    swap_experts.swap(FIXTURES[fixture], swapped, test["layer"], test["experts"])
    seen = [c for c in golden["cases"] if test["first_difference"][c["name"]] is not None]
    assert seen
    for case in seen:
        got = check.sluice_greedy(SLUICE, swapped, case["prompt_ids"], test["within"], check.EXACT)["ids"]
        want = case["greedy_ids"][: test["within"]]
        assert got != want, f"case {case['name']}: the exchange of experts is not seen"


@pytest.mark.parametrize("fixture", FIXTURES)
def test_swapping_twice_restores_every_byte(fixture, tmp_path):
    test = check.golden_of(FIXTURES[fixture])["swap_test"]
    swap_experts.swap(FIXTURES[fixture], tmp_path / "once", test["layer"], test["experts"])
    swap_experts.swap(tmp_path / "once", tmp_path / "twice", test["layer"], test["experts"])
    changed = 0
    for path in FIXTURES[fixture].glob("*.safetensors"):
        changed += (tmp_path / "once" / path.name).read_bytes() != path.read_bytes()
        assert (tmp_path / "twice" / path.name).read_bytes() == path.read_bytes()
    assert changed > 0
