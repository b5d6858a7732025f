"""sluice plan: what it ranks, writes and refuses; its plan runs.

SLUICE_BIN names the program (default build/sluice)."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from served import Server  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
TINY = ROOT / "tests" / "golden" / "qwen3moe-tiny"
HERE = """
name: this-machine
devices:
  core: {memory: 4GB, bandwidth: 10GB/s, f32: 50GFLOPS, launch: 5us, price: 1}
nodes:
  - {device: core, devices_per_node: 2, count: 1, intra: {bandwidth: 2GB/s, latency: 20us}}
"""
KINDS = ["ep", "eps", "hybrid", "pipeline", "dep", "pingpong", "findep", "aep"]


def sluice(*args, code=0):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    done = subprocess.run([SLUICE, *map(str, args)], capture_output=True, text=True, timeout=120, env=clean)
    assert done.returncode == code, f"exit {done.returncode}, not {code}: {done.stdout}{done.stderr}"
    assert "Sanitizer" not in done.stderr
    return done.stdout, done.stderr


def plan(*args):
    return json.loads(sluice("plan", *args, "--json")[0])


def refused(code, *args):
    out, err = sluice("plan", *args, code=code)
    assert out == "" and err.startswith("sluice plan: ") and err.count("\n") == 1, err
    return err


@pytest.fixture
def here(tmp_path):
    path = tmp_path / "here.yaml"
    path.write_text(HERE)
    return path


def test_all_kinds_are_ranked():
    found = plan("mixtral-8x22b", "--cluster", "megascale-hetero", "--objective", "tok/s/$", "--slo-tpot", "150ms")
    rows = found["deployments"]
    assert sorted(r["schedule"] for r in rows) == sorted(KINDS)
    values = [r["objective"] for r in rows]
    assert values == sorted(values, reverse=True)
    for r in rows:
        assert r["tpot_ms"] <= 150 and r["estimated"] and r["devices"] <= found["devices"]
        assert r["objective"] == pytest.approx(r["tokens_per_s"] / r["cost_per_hour"], rel=1e-4)
    assert found["estimated"] and found["why"].startswith(rows[0]["schedule"] + " wins")
    for r in rows:  # there is no law for aep: its steps are simulated
        assert r["simulated"] == (r["schedule"] == "aep") and not r["optimistic"]
    speeds = [1 / r["tpot_ms"] for r in found["front"]]
    assert speeds == sorted(speeds, reverse=True)


def test_text_says_that_it_estimates():
    out, _ = sluice("plan", "dbrx", "--cluster", "h20-8-l40s-16", "--slo-tpot", "150ms", "--slo-ttft", "3s")
    assert "Estimates from data sheets" in out and "Pareto front" in out
    assert re.search(r"experts are weight-bound below \d+ rows and get \d+", out)
    assert "* planned only" in out


def test_top_and_published():
    few = plan("dbrx", "--cluster", "h20-8-l40s-16", "--slo-tpot", "150ms")
    many = plan("dbrx", "--cluster", "h20-8-l40s-16", "--slo-tpot", "150ms", "--top", 3)
    assert len(many["deployments"]) > len(few["deployments"])
    assert many["deployments"][0] == few["deployments"][0]
    published = plan("dbrx", "--cluster", "h20-8-l40s-16", "--slo-tpot", "150ms", "--as-published")
    assert published["as_published"] and published["deployments"] != few["deployments"]


def test_some_kinds_alone(tmp_path):
    args = ["dbrx", "--cluster", "h20-8-l40s-16", "--slo-tpot", "150ms"]
    both, some = plan(*args), plan(*args, "--only", "findep,ep")
    rows = {r["schedule"]: r for r in both["deployments"]}
    assert {r["schedule"]: r for r in some["deployments"]} == {k: rows[k] for k in ("findep", "ep")}
    assert {c["schedule"] for c in some["curves"]} == {"findep", "ep"}
    assert "'fast' is none of ep, eps" in refused(2, *args, "--only", "ep,fast")
    assert "or named twice" in refused(2, *args, "--only", "ep,ep")
    assert "nearest change: --slo-tpot" in refused(3, *args[:-2], "--only", "hybrid", "--slo-tpot", "1ms")


def test_each_with_its_plan(tmp_path):
    out = tmp_path / "plan.json"
    args = ["dbrx", "--cluster", "h20-8-l40s-16", "--slo-tpot", "150ms"]
    found = plan(*args, "--plans")
    runs = [p for p in found["deployments"] + found["front"] + sum((c["points"] for c in found["curves"]), []) if not p["planned_only"]]
    assert runs and all((p["plan"] is None) == bool(p["planned_only"]) for p in found["deployments"])
    assert all(p["plan"]["schedule"] == p["schedule"] and p["plan"]["deployment"]["predicted"]["tpot_ms"] == p["tpot_ms"] for p in runs)
    best = plan(*args, "--runnable", "-o", out, "--plans")["deployments"][0]
    assert best["plan"] == json.loads(out.read_text())
    assert "only with --json" in refused(2, *args, "--plans")


def test_who_listens_hears_how_far_it_is(tmp_path):
    heard = tmp_path / "heard"
    with heard.open("w") as file:
        told = ["plan", "mixtral-8x7b", "--cluster", "h100-8", "--json", "--report-fd", str(file.fileno())]
        subprocess.run([SLUICE, *told], check=True, capture_output=True, pass_fds=[file.fileno()])
    steps = [tuple(map(int, line.split())) for line in heard.read_text().splitlines()]
    assert steps and steps == sorted(steps) and all(d <= t for d, t in steps)


def test_a_load_that_can_be_guessed_is_planned_with_guesses(tmp_path):
    out, load = tmp_path / "plan.json", tmp_path / "load.yaml"
    lengths = "input: 64\noutput: 32\narrival: {closed: 4}\n"
    for guesses, said in (("", None), ("guesses: {right: 0.9, found: 0.5}\n", "lookup")):
        load.write_text(lengths + guesses)
        plan("mixtral-8x7b", "--cluster", "h100-8", "--workload", load, "--runnable", "-o", out)
        assert json.loads(out.read_text()).get("speculate") == said
    told, _ = sluice("simulate", "mixtral-8x7b", "--plan", out, "--workload", load, "--requests", 8, "--json")
    assert json.loads(told)["requests"]["finished"] == 8 and "guesses" in json.loads(told)


def test_the_block_that_guesses_takes_memory(tmp_path):
    """11.6 GB of each attention worker, of DeepSeek-V3."""
    out = tmp_path / "plan.json"
    args = ["deepseek-v3", "--cluster", "h200-8", "--only", "dep", "-o", out]
    least = []
    for how in ([], ["--speculate", "mtp"]):
        found = plan(*args, *how)["deployments"][0]
        assert (found["planned_only"] == "the block that guesses on GPUs") == bool(how)
        assert json.loads(out.read_text()).get("speculate") == (how[1] if how else None)
        least.append(found["memory_bytes"]["attention"] / 1e9 * found["attention"]["tensor_parallel"])
    assert abs(least[1] - least[0] - 11.6) < 0.1
    assert "mixtral-8x7b has no block" in refused(1, "mixtral-8x7b", "--cluster", "h100-8", "--speculate", "mtp")
    assert "--speculate: speculate 'often' is unknown: off, lookup" in refused(2, "mixtral-8x7b", "--cluster", "h100-8", "--speculate", "often")
    assert "--strategies counts no memory of the block" in refused(2, "deepseek-v3", "--cluster", "h200-8", "--strategies", "--speculate", "both")
    assert "the cluster has too few devices" in refused(3, *args, "--speculate", "mtp", "--runnable")


def test_as_many_as_fit_is_no_load_to_simulate(tmp_path):
    load = tmp_path / "load.yaml"
    load.write_text("input: 64\noutput: 32\narrival: {closed: full}\n")
    args = ["mixtral-8x7b", "--cluster", "h100-8", "--workload", load]
    assert plan(*args)["deployments"][0]["requests"] > 1
    _, err = sluice("simulate", "mixtral-8x7b", "--attention", 1, "--experts", 1, "--workload", load, code=2)
    assert "closed: full" in err


def test_infeasible_exits_3_with_a_change_that_helps():
    args = ["mixtral-8x7b", "--cluster", "cpu-4x10g"]
    err = refused(3, *args, "--slo-tpot", "1ms")
    change = re.search(r"--slo-tpot ([\d.]+)ms", err)
    assert plan(*args, "--slo-tpot", f"{change[1]}ms")["deployments"]
    assert "--slo-ttft" in refused(3, *args, "--slo-ttft", "1ms")


def test_refusals(tmp_path, here):
    assert "--cluster" in refused(2, TINY)
    assert "no price" in refused(2, "mixtral-8x7b", "--cluster", "cpu-4x10g", "--objective", "tok/s/$")
    assert "tok/s/device" in refused(2, "mixtral-8x7b", "--cluster", "cpu-4x10g", "--objective", "speed")
    assert "--slo-tpot" in refused(2, "mixtral-8x7b", "--cluster", "cpu-4x10g", "--slo-tpot", "fast")
    assert "no-such" in refused(1, "no-such", "--cluster", "cpu-4x10g")
    long = tmp_path / "long.yaml"
    long.write_text("input: 600\noutput: 20\n")
    assert "context of 512" in refused(2, TINY, "--cluster", here, "--workload", long)
    sluice("plan", TINY, "--cluster", here, "-o", tmp_path / "no" / "plan.json", code=1)


@pytest.mark.parametrize("kind", ["winner", "dep", "pingpong", "findep", "aep", "eps"])
def test_the_plan_runs(tmp_path, here, kind):
    """Plan the fixture for two workers on this machine, then generate with the plan."""
    out = tmp_path / "plan.json"
    found = plan(TINY, "--cluster", here, "--runnable", "-o", out)
    assert all(r["planned_only"] is False for r in found["deployments"])
    written = json.loads(out.read_text())
    assert found["why"].startswith(written["schedule"] + " wins")
    if kind != "winner":  # what the search says about another kind, in the place of the winner
        row = next(r for r in found["deployments"] if r["schedule"] == kind)
        apart = kind in ("dep", "pingpong", "findep", "aep")
        roles = [["attention"], ["expert"]] if apart else [["attention", "expert"]]
        counts = [row["attention"]["workers"], row["expert"]["workers"]]
        written.update(schedule=kind, lanes=1 if kind == "aep" else row["lanes"], chunks=row["chunks"],
                       chunk_by="experts" if kind == "eps" else row["chunk_by"], order=row["order"],
                       workers=[{"roles": r} for r, n in zip(roles, counts) for _ in range(n)])
        out.write_text(json.dumps(written))
    expected, _ = sluice("run", TINY, "--ids", "3,17,41", "-n", 8, "--temp", 0, "--exact", "--json")
    text, _ = sluice("run", TINY, "--plan", out, "--ids", "3,17,41", "-n", 8, "--temp", 0, "--exact", "--json")
    assert json.loads(text)["ids"] == json.loads(expected)["ids"]


def test_what_is_planned_only_is_refused_by_name(tmp_path, here):
    out = tmp_path / "plan.json"
    plan(TINY, "--cluster", here, "-o", out)
    written = json.loads(out.read_text())
    for change, word in [({"schedule": "hybrid"}, "tp (--tp) 1, 2 is the least"), ({"schedule": "pipeline"}, 'workers are pipelines ("pp", --pp)')]:
        out.write_text(json.dumps(written | change))
        _, err = sluice("run", TINY, "--plan", out, "--ids", "3", code=2 if change["schedule"] == "hybrid" else 1)
        assert word in err and change["schedule"] in err
    for part, word in [({"tensor_parallel": {"attention": 8, "expert": 1}}, "tensor parallelism 8"),
                       ({"pipeline_stages": 2}, '2 stages were planned, "pp" has 1 ranks')]:
        out.write_text(json.dumps(written | {"deployment": part}))
        _, err = sluice("run", TINY, "--plan", out, "--ids", "3", code=1)
        assert word in err


def test_skewed_routing_lets_aep_win(tmp_path):
    load = tmp_path / "load.yaml"
    load.write_text("input: 150\noutput: 150\nrouting: {exp: 0.6, permuted: true}\n")
    even = plan("dbrx", "--cluster", "h20-8-l40s-16", "--slo-tpot", "150ms", "--decode-only")
    skewed = plan("dbrx", "--cluster", "h20-8-l40s-16", "--slo-tpot", "150ms", "--decode-only", "--workload", load)
    assert not even["why"].startswith("aep")
    assert all(r["optimistic"] for r in skewed["deployments"] if r["schedule"] == "aep")


def test_measured_costs_instead_of_estimates(tmp_path, here):
    profile = tmp_path / "profile.json"
    stages = {k: {"fixed": 2, "floor": 5, "row": 1, "key": 0.01 if k == "attention" else 0}
              for k in ("attention", "router", "dense", "expert", "head")}
    link = {"transport": "shm", "peers": 1, "alpha": 30, "byte": 0.0005, "half_bytes": 0, "half_duplex": False}
    profile.write_text(json.dumps({"version": 1, "model": "qwen3moe-tiny", "machine": "m", "isa": "avx2", "cores": 2,
                                   "threads": 1, "random_weights": False, "memory_bytes": 4e9, "seconds": 1,
                                   "stages": stages, "links": [link]}))
    out, err = sluice("plan", TINY, "--cluster", here, "--profile", profile, "--slo-tpot", "20ms")
    assert "Estimates" not in out and err == "" and "weight-bound below 5 rows" in out


def test_strategies_of_mixserve():
    found = plan("qwen3-235b-a22b", "--cluster", "mixserve-h20", "--strategies", "--top", 5)
    group, = found["groups"]
    assert group["strategies"] == 121 and 0 < group["fit"] <= 121 and len(group["best"]) == 5
    speeds = [r["tokens_per_s"] for r in group["best"]]
    assert speeds == sorted(speeds, reverse=True) and found["estimated"]
    published = plan("qwen3-235b-a22b", "--cluster", "mixserve-h20", "--strategies", "--top", 5, "--as-published")
    assert published["groups"][0]["best"] != group["best"]
    out, _ = sluice("plan", "qwen3-235b-a22b", "--cluster", "mixserve-h20", "--strategies", "--top", 5)
    assert group["best"][0]["strategy"] in out and "not measured" in out
    assert "more memory" in refused(3, "deepseek-v3", "--cluster", "findep-b", "--strategies")


def test_strategies_take_the_slots_that_keep_the_objectives(tmp_path):
    few = tmp_path / "few.yaml"
    few.write_text("input: 512\noutput: 128\narrival: {closed: 16}\n")
    args = ["qwen3-235b-a22b", "--cluster", "mixserve-h20", "--strategies", "--top", 16]
    (all_slots,), (sixteen,) = (plan(*args, "--slo-tpot", "20ms", *more)["groups"] for more in ([], ["--workload", few]))
    assert all_slots["fit"] >= sixteen["fit"] >= 40
    assert all(r["itl_ms"] <= 20 and r["requests"] >= 1 for r in all_slots["best"] + sixteen["best"])
    assert all_slots["best"][0]["tokens_per_s"] >= sixteen["best"][0]["tokens_per_s"]
    for slo in "--slo-tpot", "--slo-ttft":
        change = re.search(rf"nearest change: {slo} ([\d.]+ms)", refused(3, *args, slo, "1ms"))
        assert plan(*args, slo, change[1])["groups"][0]["fit"] > 0
    rate = tmp_path / "rate.yaml"
    rate.write_text("input: 512\noutput: 128\narrival: {poisson: 1000}\n")
    assert "times the devices" in refused(3, *args, "--workload", rate)


def test_without_an_objective_users_are_not_kept_waiting():
    args = ["mixtral-8x22b", "--cluster", "megascale-ampere"]
    found, free = plan(*args), plan(*args, "--slo-tpot", "none")
    assert found["slo_tpot_ms"] == 200 and free["slo_tpot_ms"] == 0
    assert all(r["tpot_ms"] <= 200 for r in found["deployments"] + found["front"])
    assert max(r["tpot_ms"] for r in free["front"]) > 200


def test_the_default_objective_goes_where_nothing_keeps_it(tmp_path):
    slow = tmp_path / "slow.yaml"
    slow.write_text(HERE.replace("10GB/s", "1MB/s"))
    out, err = sluice("plan", TINY, "--cluster", slow)
    assert err == "sluice plan: nothing keeps the default of 200 ms a token: ranked without it\n" and "TPOT at most" not in out


def test_context_of_the_plan(tmp_path, here):
    out = tmp_path / "plan.json"

    def context(*args):
        sluice("plan", TINY, "--cluster", here, "--runnable", "-o", out, *args)
        return json.loads(out.read_text())["limits"]["context"]

    assert [context(), context("--context", "model"), context("--context", 100)] == [320, 512, 100]
    for wrong in ("513", "0", "-1", "all", "9x"):
        assert "--context: '" in refused(2, TINY, "--cluster", here, "--context", wrong)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    server = subprocess.Popen([SLUICE, "serve", TINY, "--plan", out, "--port", "0"], stderr=subprocess.PIPE, text=True, env=clean)
    try:
        said = []
        while not any("listening on" in x for x in said):
            said.append(server.stderr.readline())
            assert said[-1], said
        assert any("has a context of 100, the model's is 512" in x for x in said) and "context 100," in said[-1], said
    finally:
        server.terminate()
        server.communicate(timeout=60)


def test_a_plan_names_what_it_counted_with(tmp_path, here):
    out = tmp_path / "plan.json"
    sluice("plan", TINY, "--cluster", here, "--runnable", "-o", out)
    made = json.loads(out.read_text())["deployment"]
    assert made["cluster"] == "this-machine" and made["costs"] == {"attention": "core", "expert": "core"}
    load = tmp_path / "load.yaml"
    load.write_text("input: 64\noutput: 16\narrival: {closed: 2}\n")
    args = ["simulate", TINY, "--plan", out, "--workload", load, "--requests", 2]
    _, err = sluice(*args)
    assert err.endswith("was planned for this-machine with costs of core and core; this counts with those of H100\n"), err
    made["costs"] = {"attention": "H100", "expert": "H100"}
    out.write_text(json.dumps(json.loads(out.read_text()) | {"deployment": made}))
    assert sluice(*args)[1] == ""


def test_tensor_parallelism_on_cpus_is_run(tmp_path):
    """What --plans offers with several devices a worker runs as gangs; the same devices as GPUs are planned only."""
    def cluster(cpu):
        file = tmp_path / f"{cpu}.yaml"
        file.write_text("devices:\n  box: {memory: 1GB, bandwidth: 1GB/s, f32: 1TFLOPS, launch: 1us, cpu: " + cpu + "}\n"
                        "nodes:\n  - {device: box, devices_per_node: 4, count: 1, intra: {bandwidth: 100GB/s, latency: 1us}}\n")
        return file
    args = ["--only", "dep", "--top", 16, "--slo-tpot", "none", "--decode-only", "--plans"]
    rows = [r for r in plan(TINY, "--cluster", cluster("true"), *args)["deployments"] if r["attention"]["tensor_parallel"] > 1]
    assert rows and not any(r["planned_only"] for r in rows)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(rows[0]["plan"]))
    assert rows[0]["plan"]["tp"] == {side: rows[0][side]["tensor_parallel"] for side in ("attention", "expert")}
    out, _ = sluice("run", TINY, "--plan", file, "--ids", "3,5,7", "-n", 8, "--exact", "--json")
    plain, _ = sluice("run", TINY, "--ids", "3,5,7", "-n", 8, "--exact", "--json")
    assert json.loads(out)["ids"] == json.loads(plain)["ids"]
    for kind, runs in (("ep", "dep"), ("eps", "findep")):  # one role of two: workers that take turns on their devices
        turns = [r for r in plan(TINY, "--cluster", cluster("true"), "--only", kind, *args[2:])["deployments"] if r["attention"]["tensor_parallel"] > 1]
        assert turns and all(not r["planned_only"] and r["plan"]["schedule"] == runs for r in turns)
        assert kind == "ep" or all(r["plan"]["chunk_by"] == "experts" and r["plan"]["chunks"] == r["chunks"] > 1 and r["plan"]["lanes"] == 1 for r in turns)
        file.write_text(json.dumps(turns[0]["plan"]))
        assert json.loads(sluice("run", TINY, "--plan", file, "--ids", "3,5,7", "-n", 8, "--exact", "--json")[0])["ids"] == json.loads(plain)["ids"]
    gpus = [r for r in plan(TINY, "--cluster", cluster("false"), *args)["deployments"] if r["attention"]["tensor_parallel"] > 1]
    assert gpus and all(r["planned_only"] == "tensor parallelism over GPUs" and r["plan"] is None for r in gpus)
    lied = rows[0]["plan"] | {"tp": {"attention": 1, "expert": 1}}
    file.write_text(json.dumps(lied))
    _, err = sluice("run", TINY, "--plan", file, "--ids", "3", code=1)
    assert "was planned" in err and '"tp" has 1 ranks' in err


def strategies_of_four(folder, nodes):
    """The arguments that ask for strategies of four devices on so many nodes, and what is answered."""
    cluster = folder / "cluster.yaml"
    cluster.write_text("devices:\n  box: {memory: 1GB, bandwidth: 10GB/s, f32: 1TFLOPS, launch: 1us, cpu: true}\n"
                       f"nodes:\n  - {{device: box, devices_per_node: {4 // nodes}, count: {nodes}, intra: {{bandwidth: 100GB/s, latency: 1us}}, "
                       "inter: {bandwidth: 10GB/s, latency: 10us}}\n")
    load = folder / "load.yaml"
    load.write_text("input: 32\noutput: 16\narrival: {closed: 8}\n")
    args = [TINY, "--cluster", cluster, "--strategies", "--top", 16, "--slo-tpot", "none", "--workload", load]
    group, = plan(*args, "--plans")["groups"]
    return args, group["best"]


UNEQUAL = "TP=2+DP=2, EP=4"  # attention and experts have different degrees


@pytest.mark.parametrize("nodes", [1, 2])
def test_every_strategy_of_cpus_runs(tmp_path, nodes):
    """A plan of each row: groups of ranks, experts in groups, as often as there are devices for them; the answer is one device's."""
    args, best = strategies_of_four(tmp_path, nodes)
    names = [r["strategy"] for r in best]
    wanted = {1: {"DP=4, EP=4"}, 2: {"TP=2, TP=2 [PP=2]", "TP=1, TP=1 [PP=4]"}}[nodes]
    assert wanted | {"TP=2+DP=2, TP=2+EP=2", UNEQUAL, "DP=2, EP=2 [PP=2]"} <= set(names), names
    assert any(r["replicas"] == 2 for r in best), names
    request = ["--ids", "3,5,7,9,11", "-n", 6, "--ignore-eos", "--exact", "--json"]
    alone = json.loads(sluice("run", TINY, *request)[0])["ids"]
    file = tmp_path / "plan.json"
    for row in best:
        assert row["planned_only"] is False
        file.write_text(json.dumps(row["plan"]))
        assert json.loads(sluice("run", TINY, "--plan", file, *request)[0])["ids"] == alone, row["strategy"]
        assert (row["plan"]["schedule"] == "hybrid") == bool(re.fullmatch(r"TP=2\+DP=2, TP=2(\+EP=2)?", row["strategy"])), row["strategy"]
    found = plan(*args[:3], "--only", "hybrid", *args[6:], "--plans")["deployments"]
    assert found and all(r["planned_only"] is False and r["plan"]["schedule"] == "hybrid" for r in found)
    file.write_text(json.dumps(found[0]["plan"]))
    assert json.loads(sluice("run", TINY, "--plan", file, *request)[0])["ids"] == alone
    sluice("plan", *args, "--runnable", "-o", file)
    assert json.loads(file.read_text())["deployment"]["predicted"]["strategy"] == names[0]


@pytest.mark.parametrize("strategy", [UNEQUAL, "TP=2+DP=2, TP=2+EP=2", "TP=2, TP=2 [PP=2]"])
def test_strategies_are_served(tmp_path, strategy):
    """By workers that are processes, as `serve --plan` starts them."""
    row, = (r for r in strategies_of_four(tmp_path, 2)[1] if r["strategy"] == strategy)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(row["plan"]))
    alone = json.loads(sluice("run", TINY, "--ids", "3,5,7,9,11", "-n", 6, "--temp", 0, "--ignore-eos", "--exact", "--json")[0])["ids"]
    server = Server(TINY, "--plan", file, "--exact")
    asked = {"model": "m", "prompt": [3, 5, 7, 9, 11], "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    assert json.loads(server.request("POST", "/v1/completions", asked).read())["choices"][0]["token_ids"] == alone
    assert set(server.workers()) == set(range(len(row["plan"]["workers"])))
    server.stop_well()


def test_strategies_that_are_not_run_are_not_written(tmp_path):
    out = tmp_path / "plan.json"
    err = refused(1, "qwen3-235b-a22b", "--cluster", "mixserve-h20", "--strategies", "--top", 1, "-o", out)
    assert "--runnable looks for the best that is" in err and not out.exists()
    group, = plan("qwen3-235b-a22b", "--cluster", "mixserve-h20", "--strategies", "--top", 3)["groups"]
    assert all(r["planned_only"] == "tensor parallelism over GPUs" or "PP" in r["strategy"] for r in group["best"])
