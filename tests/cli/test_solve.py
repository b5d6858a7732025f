"""sluice solve: what it prints, what it refuses, and its answers against a plain Python search.

SLUICE_BIN names the program (default build/sluice)."""

import itertools
import json
import math
import os
import pathlib
import random
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
EXAMPLE = ROOT / "bench" / "coeffs" / "deepseek-v2.json"
KEYS = ["order", "r1", "ma", "r2", "me", "makespan_ms", "lower_bound_ms", "throughput_samples_per_s", "solve_us"]
LINES = ["attn", "shared", "a2e", "expert", "e2a"]


def solve(*args, code=0):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    done = subprocess.run([SLUICE, "solve", *map(str, args)], capture_output=True, text=True, timeout=60, env=clean)
    assert done.returncode == code, f"exit {done.returncode}, not {code}: {done.stdout}{done.stderr}"
    assert "Sanitizer" not in done.stderr
    return done.stdout, done.stderr


def refused(code, *args):
    out, err = solve(*args, code=code)
    assert out == "" and err.startswith("sluice solve: ") and err.count("\n") == 1, err
    return err


def example(**changes):
    problem = json.loads(EXAMPLE.read_text())
    problem.update(changes)
    return {k: v for k, v in problem.items() if v is not None}


@pytest.fixture
def file(tmp_path):
    def write(problem):
        path = tmp_path / "coeffs.json"
        path.write_text(problem if isinstance(problem, str) else json.dumps(problem))
        return path
    return write


# ---- a second implementation: the recurrence "a task starts when its station and its input are there" ----


def makespan(times, layers, r1, r2, order):
    a, s, c, e, d = times
    side = out = experts = back = 0.0
    ready, last = [0.0] * r1, 0.0
    for _ in range(layers):
        attended, returned = [0.0] * r1, [0.0] * r1
        steps = [(k, i) for i in range(r1) for k in "AS"] if order == "ASAS" else \
            [("A", i) for i in range(r1)] + [("S", i) for i in range(r1)]
        for kind, i in steps:
            if kind == "A":
                side = attended[i] = max(side, ready[i]) + a
            else:
                side += s
                returned[i] = side
        for i in range(r1):
            for _ in range(r2):
                out = max(out, attended[i]) + c
                experts = max(experts, out) + e
                back = max(back, experts) + d
            ready[i] = max(returned[i], back)
            last = max(last, ready[i])
    return last


def times_at(p, ma, r2, by="tokens"):
    rows = ma * p["ag"] * p["top_k"] * p["S"]
    parts = r2 if by == "tokens" else 1
    me = -(-rows // (parts * p["E"])) if p["integer_tokens"] else rows / (parts * p["E"])
    skew = p.get("skew", 1)
    attn, shared, a2e, expert, e2a = (p[k] for k in LINES)
    chunk = skew * me / (r2 if by == "experts" else 1)
    work = max(expert.get("floor", 0), expert["beta"] * skew * me)
    return me, (attn["alpha"] + attn["beta"] * ma, shared["alpha"] + shared["beta"] * ma,
                a2e["alpha"] + a2e["beta"] * chunk,
                expert["alpha"] + (work if by == "tokens" else work / r2), e2a["alpha"] + e2a["beta"] * chunk)


def search(p):
    best = 0
    for ma in range(1, p["batch_per_ag"] + 1):
        most = min(p["batch_per_ag"] // ma, p["r1_max"] or 10**9)
        for r1, r2, order in itertools.product(range(1, most + 1), range(1, p["r2_max"] + 1), ("ASAS", "AASS")):
            _, times = times_at(p, ma, r2)
            best = max(best, r1 * ma * p["ag"] / makespan(times, p["T"], r1, r2, order) * 1000)
    return best


def small(rng):
    def line(scale):
        return {"alpha": scale * rng.uniform(0.01, 1), "beta": scale * rng.uniform(0.01, 1)}
    p = {"T": rng.randint(1, 12), "ag": rng.randint(1, 4), "eg": rng.randint(1, 4), "S": rng.randint(1, 40),
         "E": rng.randint(8, 64), "top_k": rng.randint(1, 8), "batch_per_ag": rng.randint(1, 6),
         "r1_max": rng.choice([0, 0, 2]), "r2_max": rng.randint(1, 6), "integer_tokens": rng.random() < 0.7}
    p.update({k: line(rng.uniform(0.1, 3)) for k in LINES})
    return p


@pytest.mark.parametrize("seed", range(25))
def test_search_equals_trying_everything(file, seed):
    p = small(random.Random(seed))
    out, _ = solve("--coeffs", file(p), "--json")
    got = json.loads(out)
    assert list(got) == KEYS
    me, times = times_at(p, got["ma"], got["r2"])
    exact = makespan(times, p["T"], got["r1"], got["r2"], got["order"])
    assert got["me"] == pytest.approx(me, rel=1e-12)
    assert got["makespan_ms"] == pytest.approx(exact, rel=1e-9)
    assert got["throughput_samples_per_s"] == pytest.approx(got["r1"] * got["ma"] * p["ag"] / exact * 1000, rel=1e-9)
    assert got["throughput_samples_per_s"] == pytest.approx(search(p), rel=1e-9)
    assert got["lower_bound_ms"] <= exact * (1 + 1e-9) and got["solve_us"] >= 0
    assert got["r1"] * got["ma"] <= p["batch_per_ag"] and got["r2"] <= p["r2_max"]


@pytest.mark.parametrize("order,r1,ma,r2", [("ASAS", 2, 4, 3), ("AASS", 3, 2, 5), ("asas", 1, 1, 1)])
def test_one_point(file, order, r1, ma, r2):
    p = example(T=7, integer_tokens=False)
    got = json.loads(solve("--coeffs", file(p), "--json", "--fix", f"{order},{r1},{ma},{r2}")[0])
    _, times = times_at(p, ma, r2)
    assert (got["order"], got["r1"], got["ma"], got["r2"]) == (order.upper(), r1, ma, r2)
    assert got["makespan_ms"] == pytest.approx(makespan(times, 7, r1, r2, order.upper()), rel=1e-9)


def test_left_out_fields_have_their_defaults(file):
    p = example(e2a=None, shared=None, r1_max=None, integer_tokens=None)
    full = example(shared={"alpha": 0, "beta": 0}, e2a=example()["a2e"])
    a, b = (json.loads(solve("--coeffs", file(q), "--json")[0]) for q in (p, full))
    a.pop("solve_us"), b.pop("solve_us")
    assert a == b


def test_as_published(file):
    p = example(T=8, ag=1, eg=1, S=1, E=1, top_k=1, attn={"alpha": 2, "beta": 0}, shared={"alpha": .5, "beta": 0},
                a2e={"alpha": .6, "beta": 0}, e2a=None, expert={"alpha": .4, "beta": 0})
    exact = json.loads(solve("--coeffs", file(p), "--json", "--fix", "ASAS,2,1,4")[0])
    printed = json.loads(solve("--coeffs", file(p), "--json", "--fix", "ASAS,2,1,4", "--as-published")[0])
    assert exact["makespan_ms"] == pytest.approx(45.7) and printed["makespan_ms"] == pytest.approx(47.5)
    assert printed["exact_makespan_ms"] == pytest.approx(45.7)
    err = refused(2, "--coeffs", file(p), "--fix", "AASS,2,1,4", "--as-published")
    assert "no makespan for AASS" in err


def test_expert_groups_read_weights_once(file):
    p = example(expert={"alpha": 0.1, "beta": 1e-6, "floor": 4}, r1_max=1, chunk_by="auto", skew=1.2)
    got = json.loads(solve("--coeffs", file(p), "--json")[0])
    assert got["chunk_by"] == "experts" and got["r2"] > 1
    me, times = times_at(p, got["ma"], got["r2"], "experts")
    assert got["me"] == me
    assert got["makespan_ms"] == pytest.approx(makespan(times, p["T"], got["r1"], got["r2"], got["order"]), rel=1e-9)


def test_words(file):
    out, err = solve("--coeffs", EXAMPLE)
    assert err == ""
    for word in ["micro-batches of", "chunks by tokens", "makespan", "bound", "gap", "samples/s", "limit"]:
        assert word in out, out


MEMORY = {"ag_bytes": 48e9, "eg_bytes": 48e9, "hidden": 5120, "expert_width": 1536, "ag_params": 2.6e9,
          "work_width": 81920, "kv_token_bytes": 1152, "credits": 3}


def test_memory_binds(file):
    free = json.loads(solve("--coeffs", file(example(batch_per_ag=200, T=8)), "--json")[0])
    tight = json.loads(solve("--coeffs", file(example(batch_per_ag=200, T=8, memory={**MEMORY, "ag_bytes": 1e10})),
                             "--json")[0])
    assert tight["r1"] * tight["ma"] < free["r1"] * free["ma"]
    err = refused(3, "--coeffs", file(example(T=8, memory={**MEMORY, "ag_bytes": 4e9})))
    assert "memory of an attention worker" in err
    err = refused(3, "--coeffs", file(example(T=8, memory={**MEMORY, "eg_bytes": 10e9})))
    assert "memory of an expert worker" in err


@pytest.mark.parametrize("change,words", [
    ({"T": 0}, ["T", "0 is outside 1.."]), ({"top_k": 161}, ["top_k", "161", "E is 160"]),
    ({"attn": {"alpha": -1, "beta": 0}}, ["attn.alpha", "-1 is outside"]),
    ({"expert": {"alpha": 1}}, ["expert.beta", "missing"]), ({"E": None}, ["E", "missing"]),
    ({"colour": 1}, ["colour", "unknown field"]), ({"chunk_by": "rows"}, ["chunk_by", "rows"]),
    ({"a2e": {"alpha": 1, "beta": 1, "floor": 1}}, ["a2e.floor", "unknown field"]),
    ({"r2_max": 5000}, ["r2_max", "5000 is outside 1..4096"]), ({"S": 1.5}, ["S"]), ({"skew": 0.5}, ["skew", "0.5"]),
])
def test_bad_files_are_named(file, change, words):
    err = refused(1, "--coeffs", file(example(**change)))
    assert "coeffs.json" in err and all(w in err for w in words), err


def test_bad_calls(file):
    assert "--coeffs FILE is missing" in refused(2)
    assert "nowhere.json" in refused(1, "--coeffs", "nowhere.json")
    assert "line 1" in refused(1, "--coeffs", file("{"))
    for point in ["ASAS", "ASAS,1,1", "ASAP,1,1,1", "ASAS,0,1,1", "ASAS,1,1,1,1", "ASAS,1,-1,1", "ASAS,1,1,99999"]:
        assert "--fix: '" in refused(2, "--coeffs", EXAMPLE, "--fix", point)
    zero = {"alpha": 0, "beta": 0}
    assert "all times are 0" in refused(2, "--coeffs", file(example(**{k: zero for k in LINES})))
    assert "too many arguments" in refused(2, "more", "--coeffs", EXAMPLE)


def test_bound_holds_and_is_near(file):
    rng = random.Random(3)
    for _ in range(20):
        p = {**small(rng), "T": 32}
        got = json.loads(solve("--coeffs", file(p), "--json")[0])
        assert 1 - 1e-9 <= got["makespan_ms"] / got["lower_bound_ms"] < 1.2
        assert math.isfinite(got["throughput_samples_per_s"])
