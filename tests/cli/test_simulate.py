"""sluice simulate: stage times from a file, refusals; and whole deployments in virtual time.

SLUICE_BIN names the program (default build/sluice)."""

import json
import os
import pathlib
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
