#!/usr/bin/env python3
"""Figures of recorded runs and closed forms of bench/figures.py, on traces whose answers are known; every row
of bench/schedules/claims.json can be made.

    check_figures.py
"""
import json
import math
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import crossover
import figures
import schedules


def span(worker, category, name, begin_us, length_us, tid=0, **args):
    return {"ph": "X", "pid": worker, "tid": tid, "cat": category, "name": name, "ts": begin_us, "dur": length_us, "args": args}


def run_of(spans, dropped=0, **result):
    """A measurement from 1 to 2 s of a trace whose origin is 5 s on the machine's clock."""
    f = tempfile.NamedTemporaryFile("w", suffix=".json", delete=False)
    with f:
        json.dump({"otherData": {"layers": 2, "origin_ns": 5_000_000_000,
                                 "workers": [{"id": 0, "dropped": dropped}, {"id": 1, "dropped": 0}]},
                   "traceEvents": [{"ph": "M", "pid": 0}] + spans}, f)
    return figures.Run({"begin_ns": 6_000_000_000, "end_ns": 7_000_000_000, **result}, f.name, "")


def laws():
    assert figures.sequential_law(6, 5, 1, 2) == 14
    assert figures.lanes_law(10, 10, 4.5, 4.5, 3) == 30 and figures.lanes_law(10, 10, 4.5, 4.5, 2) == 29
    # a 10, c 5, e 10: whole sequences 30, four chunks 10 + 2 * 1.25 + 2.5 + 3 * 2.5
    assert figures.findep_law(10, 10, 5, 5, 2, 1) == 30 and figures.findep_law(10, 10, 5, 5, 2, 4) == 22.5
    assert figures.findep_law(10, 10, 5, 5, 3, 4) == 30
    assert math.isclose(figures.groups_law(0.2, 8, 4, 4, 4), 10.2)


def stages():
    spans = []
    for at in (1_000_000, 1_100_000, 2_100_000):  # the last one is after the measurement
        spans += [span(0, "execute", "attention", at, 10_000, rows=64, layer=0), span(0, "execute", "router", at + 10_000, 500, layer=0),
                  span(1, "execute", "expert", at + 12_000, 8_000, layer=0), span(0, "lane", "step", at, 41_000, tid=1),
                  span(100000, "link", "DISPATCH", at + 11_000, 900, rows=64, latency_us=1000),
                  span(100000, "link", "DISPATCH", at + 11_000, 10, rows=0, latency_us=10),
                  span(100000, "link", "RETURN", at + 20_000, 900, rows=64, latency_us=1500)]
    run = run_of(spans)
    assert run.stages() == (10.5, 8, 1, 1.5), run.stages()
    assert run.layer_ms() == 20.5
    assert math.isclose(figures.over_sequential_law({"of": ["a"]}, {"a": run}), 20.5 / 21)
    assert math.isclose(figures.share_of_lanes_law({"of": ["a"], "m": 3}, {"a": run}), 31.5 / 20.5)
    late = run_of([span(0, "poll", "poll", 1_050_000, 1)] + spans[7:], dropped=9)
    assert late.events() and late.window_ms == (1050, 2000)


def bound():
    spans = [span(w, "execute", "expert", 1_000_000 + 1000 * n, ms * 1000, layer=layer)
             for n, (w, layer, ms) in enumerate([(0, 0, 9), (1, 0, 3), (0, 1, 2), (1, 1, 10)])]
    runs = {"ep": run_of(spans, tokens_per_s=10), "aep": run_of([], tokens_per_s=14)}
    row = {"of": ["aep", "ep"], "metric": "tokens_per_s"}
    assert math.isclose(figures.imbalance_bound(row, runs), 19 / 13)
    assert math.isclose(figures.share_of_imbalance_bound(row, runs), 1.4 * 13 / 19)


def task():
    def one(at, rows, waits=False):
        idle = [span(0, "wait", "wait", at + 120, 5)] if waits else []
        return [span(0, "execute", "attention", at, 100, rows=rows), span(0, "pack", "dispatch", at + 100, 7),
                span(0, "send", "send", at + 107, 2), *idle, span(0, "pack", "merge", at + 130, 4)]

    spans = one(1_000_000, 64) + one(1_000_200, 64, True) + one(1_000_400, 300) + one(1_000_600, 60) + one(1_000_800, 64)
    cost = figures.task_us({"of": ["a"], "rows": [56, 72]}, {"a": run_of(spans)})
    assert math.isclose(cost, 13, rel_tol=1e-9), cost


def claims():
    groups = json.loads(schedules.CLAIMS.read_text())
    for group in groups:
        for side in group.get("sides", {}).values():
            config = schedules.SCHEDULES / side.get("config", group.get("config"))
            assert json.loads(config.read_text())["load"], config
        for row in group["rows"]:
            assert "program" in group or row["figure"] in figures.FIGURES, row
            assert all(side in group["sides"] for side in row.get("of", [])), row
            line = schedules.finished(group, row, [1.0, 3.0, 2.0])
            assert line["value"] == 2 and schedules.line(line) and schedules.markdown([{**line, "load": 1}])
            line = schedules.finished(group, row, schedules.Skipped("no such thing here"))
            assert line["value"] is None and "skipped: no such thing here" in schedules.line(line)


def maps():
    points = crossover.points_of(crossover.MAPS)
    for point in points:
        for column in filter(lambda c, at=point: crossover.runs_at(at, c), crossover.COLUMNS):
            fields = crossover.settings_of(point, column)
            ranks = crossover.GANGS.get(column, (1,))[0]
            assert (fields["attention"] + fields["experts"]) * ranks == crossover.WORKERS
            ahead = list(crossover.SCHEDULES).index(column) if column in crossover.SCHEDULES else -50
            point.setdefault("schedules", {})[column] = {"tokens_per_s": 100.0 + ahead}
    for name in crossover.MAPS:
        assert "**1.07**" in crossover.table_of(name, points), name
    with tempfile.NamedTemporaryFile(suffix=".svg") as f:
        crossover.write_svg(f.name, list(crossover.MAPS), points)
        assert pathlib.Path(f.name).read_text().count("<rect") == 1 + sum(
            len(down) * len(across) for (_, down), (_, across) in crossover.MAPS.values())


if __name__ == "__main__":
    for check in (laws, stages, bound, task, claims, maps):
        check()
        print(f"{check.__name__}: ok")
