"""--pp: pipelines give the tokens of one device, as options and as a plan; they are emulated and simulated.

SLUICE_BIN names the program (default build/sluice)."""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
TINY = ROOT / "tests" / "golden" / "qwen3moe-tiny"
EMULATED = ROOT / "bench" / "lab" / "models" / "balanced"
REQUEST = ["--ids", "3,5,7,9,11", "-n", 9, "--ignore-eos", "--json"]


def sluice(*args, codes=(0,)):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    done = subprocess.run([SLUICE, *map(str, args)], capture_output=True, text=True, timeout=120, env=clean)
    assert done.returncode in codes, f"exit {done.returncode}: {done.stdout}{done.stderr}"
    assert "Sanitizer" not in done.stderr
    return done.stdout, done.stderr


REFUSED = (1, 2, 3)


def ids(*args):
    return json.loads(sluice("run", TINY, *REQUEST, *args)[0])["ids"]


@pytest.mark.parametrize("options", [["--pp", 2], ["--pp", 4], ["--pp", 2, "--tp", 2], ["--pp", 3, "--microbatches", 3, "--schedule", "pingpong"],
                                     ["--pp", 2, "--attention", 2, "--exact"], ["--pp", 2, "--attention", 1, "--experts", 2, "--exact", "--segments"],
                                     ["--pp", 2, "--attention", 1, "--experts", 1, "--schedule", "aep", "--exact"]])
def test_the_same_tokens(options):
    assert ids(*options) == ids(*[o for o in options if o in ("--exact", "--segments")])


def test_a_plan_says_so(tmp_path):
    file = tmp_path / "plan.json"
    plan = {"version": 1, "schedule": "pingpong", "lanes": 2, "pp": {"degree": 2}, "workers": [{"roles": ["attention", "expert"], "experts": list(range(8))}]}
    file.write_text(json.dumps(plan))
    assert ids("--plan", file) == ids()
    for change, said in [({"pp": {"degree": 9}}, "pp.degree"), ({"pp": {"degree": 2, "ranks": "cores"}}, f"{file}: pp.ranks: ranks 'cores' is unknown"), ({"pp": {}}, "pp.degree"),
                         ({"order": "xxyy"}, f"{file}: order: order 'xxyy' is unknown"),
                         ({"pp": {"degree": 2, "ranks": "machines"}}, "worker 0 has 0 addresses of ranks, 1 are wanted")]:
        file.write_text(json.dumps(plan | change))
        _, err = sluice("run", TINY, *REQUEST, "--plan", file, codes=REFUSED)
        assert said in err


@pytest.fixture
def rows_only(tmp_path):
    """A device on which half of the rows take half of the time."""
    file = tmp_path / "device.json"
    file.write_text(json.dumps({"attention": {"row": 300}, "router": {"row": 10}, "expert": {"row": 100}, "head": {"row": 1}}))
    return f"emulated:{file}"


def test_what_is_simulated_is_emulated(tmp_path, rows_only):
    """Two ranks with two lanes are twice as fast in virtual time; the emulated ones generate, at whatever speed this machine has."""
    load = tmp_path / "load.yaml"
    load.write_text("input: 1\noutput: 40\narrival: {closed: 16}\n")

    def itl(*how):
        got = json.loads(sluice("simulate", EMULATED, "--device", rows_only, "--workload", load, "--requests", 16, "--max-num-seqs", 16, "--control-us", 0,
                                "--json", *how)[0])
        return got["itl_ms"]["p50"]

    one = itl()
    for ranks in (2, 4):
        assert 0.97 < one / itl("--pp", ranks, "--rank-link", "1:160") / ranks < 1.03
    out, _ = sluice("bench", EMULATED, "--device", rows_only, "--pp", 2, "--rank-link", "1:160", "--n-prompt", 0, "--n-gen", 3, "--batch", 4, "--reps", 1, "--json")
    assert json.loads(out)[-1]["median_ts"] > 0


@pytest.mark.parametrize("options, said", [(["--attention", 2], "it is the one worker"), (["--tp", 2], "no gangs"),
                                           (["--attention", 1, "--experts", 1, "--schedule", "aep"], "it is the one worker")])
def test_what_is_not_simulated_is_refused(rows_only, options, said):
    _, err = sluice("simulate", EMULATED, "--device", rows_only, "--pp", 2, "--rank-link", "1:160", "--requests", 2, *options, codes=REFUSED)
    assert said in err


def test_ranks_need_a_link(rows_only):
    _, err = sluice("simulate", EMULATED, "--device", rows_only, "--pp", 2, "--requests", 2, codes=REFUSED)
    assert "what ranks are linked by" in err or "rank_link" in err
