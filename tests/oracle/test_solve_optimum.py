"""The solver's fixed orders against the best order of the tasks there is, found by OR-Tools' CP-SAT: all four
stations may run their tasks in any order. Small instances, whole-number times, each proven optimal."""

import json
import os
import pathlib
import random
import subprocess

import pytest

cp_model = pytest.importorskip("ortools.sat.python.cp_model", reason="OR-Tools is not installed")

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
SHAPES = [(1, 3, 2), (2, 2, 1), (2, 3, 1), (2, 2, 2), (3, 2, 1), (3, 2, 2), (3, 3, 1), (4, 2, 1)]  # T, r1, r2
PER_SHAPE = 8


def optimum(layers, r1, r2, a, s, c, e, d):
    """Least makespan over all orders, or None when it could not be proven in time."""
    model = cp_model.CpModel()
    horizon = layers * r1 * (a + s + r2 * (c + e + d))
    stations = {"side": [], "out": [], "experts": [], "back": []}

    def task(station, duration, *after):
        start = model.new_int_var(0, horizon, "")
        stations[station].append(model.new_fixed_size_interval_var(start, duration, ""))
        for end in after:
            model.add(start >= end)
        return start + duration

    ends = [[] for _ in range(r1)]
    for _ in range(layers):
        for i in range(r1):
            attended = task("side", a, *ends[i])
            ends[i] = [task("side", s, attended)]
            for _ in range(r2):
                ends[i].append(task("back", d, task("experts", e, task("out", c, attended))))
    for intervals in stations.values():
        model.add_no_overlap(intervals)
    last = model.new_int_var(0, horizon, "")
    for lane in ends:
        for end in lane:
            model.add(last >= end)
    model.minimize(last)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = 20
    solver.parameters.num_workers = 2
    status = solver.solve(model)
    return solver.objective_value if status == cp_model.OPTIMAL else None


def fixed(tmp_path, order, layers, r1, r2, a, s, c, e, d):
    line = lambda x: {"alpha": x, "beta": 0}
    path = tmp_path / "coeffs.json"
    path.write_text(json.dumps({
        "T": layers, "ag": 1, "eg": 1, "S": 1, "E": 1, "top_k": 1, "batch_per_ag": r1, "r1_max": 0, "r2_max": r2,
        "integer_tokens": True, "attn": line(a), "shared": line(s), "a2e": line(c), "expert": line(e), "e2a": line(d)}))
    done = subprocess.run([SLUICE, "solve", "--coeffs", path, "--json", "--fix", f"{order},{r1},1,{r2}"],
                          capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "T%d,r1=%d,r2=%d" % s)
def test_fixed_orders_against_any_order(tmp_path, shape):
    layers, r1, r2 = shape
    rng = random.Random(str(shape))
    gaps = {"ASAS": [], "AASS": [], "best": []}
    for _ in range(PER_SHAPE):
        times = [max(1, round(10 ** rng.uniform(0, 2))) for _ in range(5)]  # whole units over two decades
        best = optimum(layers, r1, r2, *times)
        if best is None:
            continue
        found = {order: fixed(tmp_path, order, layers, r1, r2, *times) for order in ("ASAS", "AASS")}
        for order, got in found.items():
            assert got["lower_bound_ms"] <= best + 1e-6, (times, got, best)
            assert got["makespan_ms"] >= best - 1e-6, (times, got, best)
            gaps[order].append(got["makespan_ms"] / best - 1)
        gaps["best"].append(min(gaps["ASAS"][-1], gaps["AASS"][-1]))
        assert gaps["ASAS"][-1] <= (1 - 1 / r1) / layers + 1e-9, (times, found["ASAS"], best)
    proven = len(gaps["best"])
    assert proven >= PER_SHAPE / 2
    print(f"\nT {layers}, r1 {r1}, r2 {r2}: {proven} of {PER_SHAPE} proven; mean and largest gap, %: " + ", ".join(
        f"{k} {100 * sum(v) / proven:.2f} {100 * max(v):.2f}" for k, v in gaps.items()))
