"""sluice simulate: stage times from a file, refusals; and whole deployments in virtual time.

SLUICE_BIN names the program (default build/sluice)."""

import json
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
CASE = {"schedule": "pingpong", "layers": 32, "lanes": 3, "chunks": 1, "order": "ASAS", "iterations": 4, "duplex": "full",
        "times": {"attn": 1.0, "shared": 0, "a2e": 0.3, "expert": 1.0, "e2a": 0.3}}


def sluice(*args, code=0):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    done = subprocess.run([SLUICE, "simulate", *map(str, args)], capture_output=True, text=True, timeout=120, env=clean)
    assert "Sanitizer" not in done.stderr, done.stderr
    assert done.returncode == code, f"exit {done.returncode}, not {code}: {done.stdout}{done.stderr}"
    return done.stdout, done.stderr


def stages(tmp_path, code=0, text=None, **fields):
    file = tmp_path / "stages.json"
    file.write_text(text if text is not None else json.dumps({**CASE, **fields}))
    out, err = sluice("--stages", file, "--json", code=code)
    return json.loads(out) if code == 0 else err


def test_pingpong_by_its_law(tmp_path):
    got = stages(tmp_path)
    assert set(got) == {"makespan_ms", "period_ms", "busy"}
    assert got["period_ms"] == pytest.approx(3.0, rel=1e-9)
    assert got["makespan_ms"] == pytest.approx(2.6 + 127 * 3 + 2, rel=1e-9)
    assert set(got["busy"]) == {"attn", "shared", "a2e", "expert", "e2a"}
    assert got["busy"]["attn"] == pytest.approx(384 / 385.6, rel=1e-9)


@pytest.mark.parametrize("fields,layer", [
    ({"schedule": "dep", "lanes": 1}, 2.6),
    ({"schedule": "ep", "lanes": 1}, 2.6),
    ({"schedule": "eps", "lanes": 1, "chunks": 4}, 1 + 0.3 + 1 + 0.3 + 3 * 1),
    ({"schedule": "findep", "lanes": 2, "chunks": 2}, 4.0),
    ({"lanes": 2}, 2.6),
    ({"schedule": "aep", "lanes": 3}, 3.0),
])
def test_layer_of_every_schedule(tmp_path, fields, layer):
    assert stages(tmp_path, **fields)["period_ms"] == pytest.approx(layer, rel=1e-9)


def test_half_duplex_shares_the_link(tmp_path):
    times = {"attn": 1, "a2e": 0.8, "expert": 1, "e2a": 0.8}
    full, half = (stages(tmp_path, duplex=d, times=times)["period_ms"] for d in ("full", "half"))
    assert full == pytest.approx(3.6, rel=1e-9) and half >= 4.8 * (1 - 1e-9)


def test_the_printed_list_waits_and_what_is_ready_does_not(tmp_path):
    times = {"attn": 2, "shared": 1, "a2e": 0.2, "expert": 2, "e2a": 3}
    case = {"schedule": "findep", "order": "AASS", "layers": 3, "iterations": 1, "times": times}
    ready, listed = (stages(tmp_path, fixed_list=f, **case)["makespan_ms"] for f in (False, True))
    assert (ready, listed) == (pytest.approx(31.2, rel=1e-9), pytest.approx(31.4, rel=1e-9))
    assert stages(tmp_path, **case)["makespan_ms"] == ready
    assert "aep has no fixed order" in stages(tmp_path, code=2, schedule="aep", lanes=1, fixed_list=True)


def test_every_field_of_the_description_is_read(tmp_path):
    header = (ROOT / "src/format/stage_run_file.h").read_text()
    example = re.search(r"\{.*?\}\}", header, re.S).group().replace(" *  ", "")
    assert len(json.loads(example)) == 12
    assert stages(tmp_path, text=example)["period_ms"] == pytest.approx(3.0, rel=1e-9)


def test_table_for_people(tmp_path):
    file = tmp_path / "s.json"
    file.write_text(json.dumps(CASE))
    out, err = sluice("--stages", file)
    assert err == "" and "makespan" in out and "385.6" in out and "3.000000 ms" in out


@pytest.mark.parametrize("code,fields,text", [
    (1, {"lanes": 17}, "lanes"),
    (1, {"layers": "many"}, "layers"),
    (2, {"schedule": "dep"}, "lanes is 3, schedule dep has 1 to 1"),
    (2, {"chunks": 2}, "chunks is 2, schedule pingpong has 1 to 1"),
    (1, {"times": {"attn": -1}}, "times.attn: -1 is outside"),
    (1, {"times": {"atn": 1}}, "times.atn"),
    (1, {"speed": 1}, "speed"),
    (2, {"order": "SAAS"}, "'SAAS' is not one of asas, aass"),
    (2, {"schedule": "findep", "iterations": 100000, "lanes": 16, "layers": 512, "chunks": 2}, "iterations is 100000"),
])
def test_bad_stages_are_refused(tmp_path, code, fields, text):
    err = stages(tmp_path, code=code, **fields)
    assert "stages.json" in err and text in err, err


def test_broken_files(tmp_path):
    assert "line 1" in stages(tmp_path, code=1, text="{")
    _, err = sluice("--stages", tmp_path / "none.json", code=1)
    assert "none.json" in err
    _, err = sluice(code=2)
    assert "missing" in err
    _, err = sluice("model", "--stages", tmp_path / "none.json", code=2)
    assert "leave out" in err


# ---- whole deployments ----

MODEL = ROOT / "bench" / "lab" / "models" / "amoe-top1"
DEVICE = {"attention": {"fixed": 2000}, "expert": {"fixed": 250}}


def deployment(tmp_path, *args, code=0, load="input: 1\noutput: {uniform: [20, 40]}\narrival: {closed: 64}\n", model=MODEL):
    (tmp_path / "device.json").write_text(json.dumps(DEVICE))
    (tmp_path / "load.yaml").write_text(load)
    out, err = sluice(model, "--device", f"emulated:{tmp_path}/device.json", "--workload", tmp_path / "load.yaml",
                      "--ctx", 512, *args, "--json", code=code)
    return json.loads(out) if code == 0 else err


def test_pingpong_doubles_what_dep_does(tmp_path):
    common = ["--attention", 1, "--experts", 1, "--warmup", 5, "--measure", 20]
    dep = deployment(tmp_path, "--schedule", "dep", *common)
    two = deployment(tmp_path, "--schedule", "pingpong", *common)
    # a request that follows another one misses the step that begins when that one ends: 1 in 31
    assert dep["tokens_per_s"] == pytest.approx(64 / (32 * 4e-3) * 30 / 31, rel=0.02)
    assert two["tokens_per_s"] == pytest.approx(dep["tokens_per_s"], rel=0.02)  # 64 rows are 32 a lane: as long a stage
    assert [w["busy"] > 0.98 for w in two["workers"]] == [True, True]
    assert [round(w["busy"], 1) for w in dep["workers"]] == [0.5, 0.5]
    assert two["itl_ms"]["p50"] == pytest.approx(32 * 4, rel=0.02)


@pytest.mark.parametrize("schedule,more", [("ep", ["--attention", 3]), ("eps", ["--attention", 2]), ("dep", ["--attention", 2, "--experts", 3]),
                                           ("pingpong", ["--attention", 2, "--experts", 2, "--microbatches", 3]),
                                           ("findep", ["--attention", 1, "--experts", 2, "--chunks", 3]),
                                           ("aep", ["--attention", 2, "--experts", 2, "--policy", "rmf"]),
                                           ("hybrid", ["--attention", 3, "--tp", 2, "--rank-link", "5:200", "--rail-bytes", 20000, "--rail-links", "20:5"])])
def test_every_schedule_ends_every_request(tmp_path, schedule, more):
    args = ["--schedule", schedule, *more, "--requests", 100, "--link", "20:10", "--jitter", "0.2", "--routing", "exp:0.5:permuted"]
    got = deployment(tmp_path, *args, "--seed", 3)
    assert got["requests"] == {"submitted": 100, "finished": 100, "failed": 0, "refused": 0, "too_long": 0, "preempted": 0}
    assert got["ttft_ms"]["n"] == 100 and got["rows"]["created"] == got["rows"]["merged"]
    assert got == deployment(tmp_path, *args, "--seed", 3)  # a function of its options
    assert got["tokens_per_s"] != deployment(tmp_path, *args, "--seed", 4)["tokens_per_s"]


def test_ranks_on_machines_carry_rows(tmp_path):
    args = ["--attention", 2, "--tp", 2, "--rank-link", "50:1", "--link", "50:1", "--requests", 40, "--rail-bytes", 20000]
    took = {(schedule, ranks): deployment(tmp_path, *args[:-2], *(args[-2:] if schedule == "hybrid" else []), "--schedule", schedule, "--tp-ranks", ranks)["tokens_per_s"]
            for schedule in ("ep", "hybrid") for ranks in ("threads", "machines")}
    assert took["ep", "machines"] < 0.95 * took["ep", "threads"]
    assert took["hybrid", "machines"] == took["hybrid", "threads"] > took["ep", "machines"]
    alone = ["--attention", 1, "--tp", 2, "--rank-link", "50:1", "--requests", 20]  # rows stay at the ranks
    assert deployment(tmp_path, *alone)["tokens_per_s"] == deployment(tmp_path, *alone, "--tp-ranks", "machines")["tokens_per_s"]


def test_guesses(tmp_path):
    (tmp_path / "device.json").write_text(json.dumps({**DEVICE, "repeats": 12}))
    load = "input: 4\noutput: 200\narrival: {closed: 1}\n"

    def told(*args, more="", code=0):
        (tmp_path / "load.yaml").write_text(load + more)
        out, err = sluice(MODEL, "--device", f"emulated:{tmp_path}/device.json", "--workload", tmp_path / "load.yaml", "--ctx", 512, "--requests", 4, *args, "--json", code=code)
        return json.loads(out) if code == 0 else err

    plain, all_right = told(), told("--speculate", "lookup", "--acceptance", "1")
    assert "guesses" not in plain and all_right["guesses"]["right"] > 0.9 * all_right["guesses"]["run"] > 0
    assert all_right["tokens_per_s"] > 4 * plain["tokens_per_s"]
    rarely = told("--speculate", "lookup", more="guesses: {right: 0.02}\n")
    assert rarely["tokens_per_s"] > 0.97 * plain["tokens_per_s"] and rarely["guesses"]["run"] < 100
    assert all_right["tokens_per_s"] > told("--speculate", "lookup", "--acceptance", "0.8:0.5")["tokens_per_s"] > plain["tokens_per_s"]
    assert "how many guesses are right has to be said" in told("--speculate", "lookup", code=2)
    assert "RIGHT or RIGHT:FOUND" in told("--speculate", "lookup", "--acceptance", "1.5", code=2)
    assert "guesses" in told(more="guesses: {wrong: 1}\n", code=1)


def test_guesses_of_the_block(tmp_path):
    """All right: a call of the block, of about a third of a step here, says a token each; the model has to have one."""
    (tmp_path / "device.json").write_text(json.dumps({**DEVICE, "repeats": 12}))
    (tmp_path / "load.yaml").write_text("input: 4\noutput: 200\narrival: {closed: 1}\n")

    def told(model, *args, code=0):
        out, err = sluice(model, "--device", f"emulated:{tmp_path}/device.json", "--workload", tmp_path / "load.yaml", "--ctx", 512, "--requests", 4, *args, "--json", code=code)
        return json.loads(out) if code == 0 else err

    glm = ROOT / "tests" / "golden" / "glm4moe-tiny"
    plain, got = told(glm), told(glm, "--speculate", "mtp", "--acceptance", "1")
    block = got["block"]
    assert "block" not in plain and got["guesses"]["right"] > 0.9 * got["guesses"]["run"] > 0
    assert got["tokens_per_s"] > 1.3 * plain["tokens_per_s"]
    assert block["calls"] >= got["guesses"]["run"] / 4 and block["guesses"] >= got["guesses"]["run"] and block["rows"] > block["calls"]
    assert told(glm, "--speculate", "mtp", "--acceptance", "0.02")["tokens_per_s"] > 0.9 * plain["tokens_per_s"]
    assert "the model has no block that predicts a further token" in told(MODEL, "--speculate", "mtp", "--acceptance", "1", code=1)
    both = told(glm, "--speculate", "both", "--acceptance", "0.9:0.5:0.6")
    assert plain["tokens_per_s"] < both["tokens_per_s"] < got["tokens_per_s"] * 2 and both["block"]["guesses"] < both["guesses"]["run"]
    assert both["tokens_per_s"] > told(glm, "--speculate", "mtp", "--acceptance", "0.6")["tokens_per_s"]
    assert "RIGHT:FOUND:BLOCK" in told(glm, "--speculate", "both", "--acceptance", "0.9:0.5", code=2)
    out, _ = sluice("deepseek-v3", "--attention", 1, "--experts", 8, "--device-type", "H100", "--requests", 10, "--speculate", "mtp", "--acceptance", "0.8")
    assert "their block" in out


def test_traces_and_pictures(tmp_path):
    deployment(tmp_path, "--attention", 1, "--experts", 2, "--schedule", "pingpong", "--requests", 8, "--trace", tmp_path / "t.json", "--svg",
               tmp_path / "t.svg")
    assert (tmp_path / "t.svg").read_text().startswith("<svg")
    done = subprocess.run([SLUICE, "trace", tmp_path / "t.json", "--json"], capture_output=True, text=True, check=True)
    stats = json.loads(done.stdout)
    assert stats["schedule"] == "pingpong" and stats["transport"] == "simulated links"


def test_deaths_and_objectives(tmp_path):
    common = ["--attention", 2, "--experts", 2, "--requests", 400]
    got = deployment(tmp_path, *common, "--die", "3@1", "--notice", "0.1")
    assert got["requests"]["failed"] == 64 and got["rows"]["lost"] > 0
    load = "input: 1\noutput: {uniform: [20, 40]}\narrival: {poisson: 100}\nslo: {ttft: 1ms, tpot: 500ms}\n"
    assert deployment(tmp_path, *common, load=load)["goodput_per_s"] == 0


def test_estimates_are_marked(tmp_path):
    out, _ = sluice("deepseek-v2-lite", "--attention", 1, "--experts", 2, "--device-type", "H100", "--requests", 10, "--json")
    assert json.loads(out)["estimated"] is True
    out, _ = sluice("deepseek-v2-lite", "--attention", 1, "--experts", 2, "--requests", 10)
    assert "ESTIMATES" in out


@pytest.mark.parametrize("args,text", [
    (["--link", "fast"], "--link"), (["--tp-ranks", "machines"], "--tp-ranks machines is of gangs and pipelines"), (["--ports", "wide"], "--ports: 'wide' is not fifo or shared"), (["--rail-links", "20:5"], "--rail-links is of schedule hybrid"),
    (["--speculate", "lookup"], "follow no text, unless it repeats"), (["--acceptance", "0.9"], "--acceptance is of --speculate"),
    (["--schedule", "hybrid", "--attention", "2", "--tp", "4", "--rank-link", "5:200", "--rail-links", "20:5,20:5"], "one link, or 3"),
    (["--duplex", "simplex"], "--duplex"), (["--die", "9@1"], "--die"), (["--die", "1"], "--die"),
    (["--routing", "zipf:x"], "zipf"), (["--routing", "no-such-file"], "no-such-file"), (["--profile", "none.json"], "none.json"),
])
def test_bad_options_are_refused(tmp_path, args, text):
    (tmp_path / "device.json").write_text(json.dumps(DEVICE))
    done = subprocess.run([SLUICE, "simulate", MODEL, "--device", f"emulated:{tmp_path}/device.json", *args], capture_output=True, text=True)
    assert done.returncode in (1, 2) and text in done.stderr and done.stdout == ""


def test_many_workers(tmp_path):
    few = ["--requests", 4]
    assert len(deployment(tmp_path, "--attention", 1200, "--experts", 4, *few)["workers"]) == 1204
    ten_thousand = ["--attention", 9992, "--experts", 8]
    assert len(deployment(tmp_path, *ten_thousand, *few)["workers"]) == 10000
    everybody = "input: 1\noutput: 2\narrival: {closed: 9992}\n"  # a request each, all in one round
    done = deployment(tmp_path, *ten_thousand, "--requests", 9992, load=everybody, model=ROOT / "tests/golden/qwen3moe-tiny")
    assert done["requests"]["finished"] == 9992 and all(w["rows"] for w in done["workers"])
    assert deployment(tmp_path, "--attention", 16384, "--experts", 1, code=2).strip().endswith("16385 workers, 1 to 16384 are possible")
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "schedule": "dep", "workers": [{"roles": ["attention"]}] * 99 + [{"roles": ["expert"]}]}))
    assert len(deployment(tmp_path, "--plan", plan, *few)["workers"]) == 100
    alone, all_of_them = (subprocess.run([SLUICE, "run", ROOT / "tests/golden/qwen3moe-tiny", "--ids", "1,2,3", "--max-tokens", "4", "--exact", *args],
                                         capture_output=True, text=True, timeout=120) for args in ([], ["--plan", plan, "--transport", "loop"]))
    assert alone.returncode == all_of_them.returncode == 0, all_of_them.stderr
    assert alone.stdout == all_of_them.stdout != ""


@pytest.mark.parametrize("schedule", ["ep", "dep", "aep"])
def test_nobody_is_at_a_free_place(tmp_path, schedule):
    role = [["attention", "expert"]] if schedule == "ep" else [["attention"], ["expert"]]
    there = [{"roles": r} for r in role for _ in range(2)]
    free = [{"roles": r, "spare": True} for r in role]
    small, large = tmp_path / "small.json", tmp_path / "large.json"
    small.write_text(json.dumps({"version": 1, "schedule": schedule, "workers": there}))
    large.write_text(json.dumps({"version": 1, "schedule": schedule, "workers": there + free}))
    want, got = (deployment(tmp_path, "--plan", plan, "--requests", 40) for plan in (small, large))
    assert [w["role"] for w in got["workers"][len(there):]] == ["free"] * len(free)
    assert not any(w["busy"] or w["tasks"] or w["rows"] for w in got["workers"][len(there):])
    got["workers"] = got["workers"][:len(there)]
    assert got == want
    err = deployment(tmp_path, "--plan", large, "--requests", 40, "--die", f"{len(there)}@1", code=2)
    assert f"worker {len(there)}, which is not there" in err


def test_requests_that_do_not_fit_say_why(tmp_path):
    long = "input: {uniform: [500, 600]}\noutput: 100\narrival: {poisson: 50}\n"
    svg = tmp_path / "t.svg"
    err = deployment(tmp_path, "--attention", 1, "--requests", 20, "--svg", svg, load=long, code=3)
    shortest = int(re.search(r"no request fits: the shortest of 20 has (\d+) positions", err)[1])
    assert 500 + 100 - 1 <= shortest < 700 and "a context of 512" in err and not svg.exists()  # the last token takes none
    some = deployment(tmp_path, "--attention", 1, "--requests", 20, load=long.replace("500", "380"))["requests"]
    assert 0 < some["too_long"] == some["refused"] < 20


def gang(tmp_path, ranks, **device):
    """Milliseconds of one decoding request's token, on a device of these costs."""
    file = tmp_path / "device.json"
    file.write_text(json.dumps(device))
    load = tmp_path / "load.yaml"
    load.write_text("input: 1\noutput: 9\narrival: {closed: 1}\n")
    out, _ = sluice(ROOT / "bench/lab/models/shared-top2", "--device", f"emulated:{file}", "--tp", ranks, "--workload", load, "--requests", 1,
                    "--control-us", 0, "--message-us", 0, "--link", "0:1000000", "--json")
    return json.loads(out)["itl_ms"]["p50"]


@pytest.mark.parametrize("grouped", [False, True])
def test_a_gang_costs_what_its_ranks_and_their_sums_cost(tmp_path, grouped):
    config = json.loads((ROOT / "bench/lab/models/shared-top2/config.json").read_text())
    layers, top_k, d = config["num_hidden_layers"], config["num_experts_per_tok"], config["hidden_size"]
    link = {"alpha": 3, "byte": 0.01, "half": 100}
    cost = {"attention": {"fixed": 40, "read": 24, "row": 80}, "shared": {"fixed": 4, "floor": 24, "row": 8},
            "router": {"fixed": 6, "row": 2}, "expert": {"fixed": 10, "floor": 60, "row": 16}, "head": {"fixed": 2, "row": 32}}
    for ranks in (1, 2, 4, 8):
        def part(kind, times=1, once=1):
            c = cost[kind]
            cut = 1 if kind == "router" else ranks
            fixed = c["fixed"] - c.get("read", 0) * (1 - 1 / cut)
            return fixed * (times if not once else 1) + times * max(c.get("floor", 0), c["row"]) / cut
        # Reduce-scatter and all-gather: two messages' latency, (ranks - 1) / ranks of a row's f32 values each way.
        rounds = 2 if ranks > 1 else 0
        latency, row = rounds * (3 + 0.01 * 100), rounds * 0.01 * 4 * d * (ranks - 1) / ranks
        block = part("attention") + part("router") + part("shared") + part("expert", top_k, grouped) + 3 * latency + (2 + top_k) * row
        want = layers * block + part("head")
        assert gang(tmp_path, ranks, **cost, rank_link=link, grouped=grouped) == pytest.approx(want / 1e3, rel=1e-3), ranks


def test_links_between_ranks(tmp_path):
    model = ROOT / "bench/lab/models/shared-top2"
    device = tmp_path / "device.json"
    device.write_text('{"attention": {"fixed": 10}}')
    args = [model, "--device", f"emulated:{device}", "--requests", 1]
    _, err = sluice(*args, "--tp", 2, code=2)
    assert "device.rank_link" in err
    _, err = sluice(*args, "--tp", 2, "--rank-link", "fast", code=2)
    assert "--rank-link: 'fast' is not US:GBIT" in err
    _, err = sluice(*args, "--link", "fast", code=2)
    assert "--link: 'fast' is not US:GBIT, as 50:25, or network" in err
    sluice(*args, "--tp", 2, "--rank-link", "10:160")
    _, err = sluice(*args, "--rank-link", "10:160", code=2)
    assert "there are none" in err
    _, err = sluice(model, "--device-type", "H100", "--tp", 2, "--requests", 1, code=2)
    assert "--rank-link" in err
    sluice(ROOT / "tests/golden/configs/qwen3-30b-a3b.json", "--device-type", "H100", "--tp", 2, "--rank-link", "10:160", "--requests", 1)


def test_times_of_a_data_sheet(tmp_path):
    """--device emulated:H100 is what --device-type H100 says, experts of a task as one launch."""
    args = [ROOT / "tests/golden/configs/qwen3-30b-a3b.json", "--requests", 2, "--link", "10:200", "--json"]
    sheet, device = (json.loads(sluice(*args, *how)[0]) for how in (["--device-type", "H20"], ["--device", "emulated:H20"]))
    assert sheet["itl_ms"] == device["itl_ms"] and sheet["ttft_ms"] == device["ttft_ms"]
    assert sheet["estimated"] and device["estimated"]
    # Ranks share what attention reads, and latents are nobody's part.
    alone = [*args[:1], "--requests", 1, "--device-type", "H20", "--json"]
    fast, slow = (json.loads(sluice(*alone, *how)[0])["itl_ms"]["p50"] for how in (["--tp", 8, "--rank-link", "0:1000000"], []))
    assert fast < 0.75 * slow


def busy_load(tmp_path):
    load = tmp_path / "load.yaml"
    load.write_text("input: {uniform: [200, 2000]}\noutput: {uniform: [20, 100]}\narrival: {poisson: 6}\nslo: {ttft: 1s, tpot: 20ms, quantile: 0.9}\n")
    return ["--device-type", "H100", "--link", "10:50", "--workload", load, "--requests", 40, "--seed", 1, "--json"]


@pytest.mark.parametrize("sides", [["--attention", 2, "--prefill", 1],
                                   ["--attention", 1, "--experts", 1, "--prefill", 1, "--prefill-experts", 1, "--schedule", "pingpong"],
                                   ["--attention", 1, "--experts", 2, "--prefill", 1, "--schedule", "aep"]])
def test_prompts_apart(tmp_path, sides):
    """Every prompt is handed over once, no row is lost, and the same load gives the same figures."""
    load = busy_load(tmp_path)
    got, again = (json.loads(sluice("mixtral-8x7b", *load, *sides)[0]) for _ in range(2))
    assert got == again
    assert got["handed_over"] >= 35 and got["requests"]["finished"] == 40  # those of less than 256 tokens are not
    assert got["rows"]["created"] == got["rows"]["merged"]


def test_divisions_are_tried(tmp_path):
    got = json.loads(sluice("mixtral-8x7b", *busy_load(tmp_path), "--attention", 3, "--experts", 3, "--schedule", "dep", "--try-sides")[0])
    assert [(d["attention"], d["experts"], d["prefill"], d["prefill_experts"]) for d in got["divisions"]] == [(3, 3, 0, 0), (2, 2, 1, 1), (1, 1, 2, 2)]
    goods = [d["goodput_per_s"] for d in got["divisions"]]
    assert goods[got["best"]] >= 0.99 * max(goods)


@pytest.mark.parametrize("args, why", [
    (["--attention", 1, "--try-sides"], "--try-sides: 1 attention and 0 expert workers cannot be divided"),
    (["--attention", 2, "--prefill", 1, "--try-sides"], "leave out --plan, --prefill"),
    (["--attention", 2, "--prefill", 1, "--die", "0@1"], "deaths are not simulated where workers are for prompts"),
])
def test_what_sides_are_refused(tmp_path, args, why):
    done = subprocess.run([SLUICE, "simulate", "mixtral-8x7b", *map(str, busy_load(tmp_path)), *map(str, args)], capture_output=True, text=True, timeout=60)
    assert done.returncode in (1, 2, 3) and why in done.stderr, done.stderr
