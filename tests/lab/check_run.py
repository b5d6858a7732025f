#!/usr/bin/env python3
"""The driver of experiments on an emulated model: closed and open loops, skewed routes, what is refused.

    check_run.py BUILD_FOLDER
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = ROOT / "bench" / "lab" / "run.py"
THETA = 1.0
BASE = {
    "model": str(ROOT / "bench" / "lab" / "models" / "amoe-top1"), "attention": 2, "experts": 2,
    "device": str(ROOT / "bench" / "lab" / "amoe-low.json"), "route_skew": f"exp:{THETA}:1", "transport": "loop",
    "plan": {"limits": {"context": 64, "max_num_seqs": 64}},
    "load": {"loop": "closed", "concurrency": 24, "requests": 48, "prompt": [1, 4], "output": [2, 6], "seed": 3},
}


def run(build, config, *options):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(config, f)
        f.flush()
        done = subprocess.run([sys.executable, RUN, f.name, "--build", build, *options], capture_output=True, text=True,
                              timeout=200)
    return done


def result(build, config, *options):
    done = run(build, config, *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def closed(build):
    r = result(build, BASE)
    assert r["requests"] == {"submitted": 48, "finished": 48, "refused": 0}, r["requests"]
    assert r["tokens"] == r["itl_ms"]["n"] + r["ttft_ms"]["n"] and 48 * 2 <= r["tokens"] <= 48 * 6, r["tokens"]
    # a step is 32 blocks of at least an attention (150 us) and an expert (250 us)
    assert r["itl_ms"]["p50"] >= 32 * 0.4 * 0.99, r["itl_ms"]
    rows = [w["expert_rows"] for w in r["workers"]]
    share = sum(math.exp(-THETA * e) for e in range(4)) / sum(math.exp(-THETA * e) for e in range(8))
    print(f"closed loop: {r['tokens_per_s']:.0f} tokens/s, experts 0-3 got {rows[2] / sum(rows):.3f} of the rows, "
          f"expected {share:.3f}")
    assert sum(rows) > 2000 and abs(rows[2] / sum(rows) - share) < 0.03, rows


def opened(build):
    load = {"loop": "open", "concurrency": 32, "rate": 20, "warmup_s": 0.5, "measure_s": 3, "prompt": [1, 1],
            "output": [2, 3]}
    r = result(build, {**BASE, "load": load}, "--set", "time_scale=2", "--set", "plan.schedule=dep")
    n = r["requests"]["submitted"] + r["requests"]["refused"]
    print(f"open loop: {n} arrivals in 3.5 s at 20 a second, {r['requests']['refused']} refused")
    assert 35 <= n <= 110, n  # 70 of a Poisson process, +- 4 standard deviations
    assert abs(r["modelled"]["tokens_per_s"] - 2 * r["tokens_per_s"]) < 0.1


def refused(build):
    for change, why in [("load.loop=spiral", "closed"), ("load.prompt=[5,2]", "least, most"), ("oops=1", "oops"),
                        ("load.output=[100,100]", "context 64"), ("route_skew=exp:99", "route skew"),
                        ("device=null", "only an emulated device"), ("network.colour=1", "colour")]:
        done = run(build, BASE, "--set", change)
        assert done.returncode != 0 and why in done.stderr, (change, done.stderr)
    print("refused what cannot be run")


if __name__ == "__main__":
    for check in (closed, opened, refused):
        check(sys.argv[1])
