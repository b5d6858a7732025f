"""sluice profile --listen and --links-to: links between machines, here over loopback, and who reads them.

SLUICE_BIN names the program (default build/sluice)."""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}


def sluice(*args, code=0):
    done = subprocess.run([SLUICE, *map(str, args)], capture_output=True, text=True, timeout=120, env=CLEAN)
    assert done.returncode == code, (done.returncode, done.stderr)
    assert "Sanitizer" not in done.stderr
    return done.stdout, done.stderr


class Listener:
    def __init__(self, *args):
        self.process = subprocess.Popen([SLUICE, "profile", "--listen", "127.0.0.1:0", "--json", *map(str, args)],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=CLEAN)
        self.address = json.loads(self.process.stdout.readline())["address"]

    def end(self, code=0):
        _, err = self.process.communicate(timeout=60)
        assert self.process.returncode == code and "Sanitizer" not in err, err
        return err


def test_links_are_measured_and_used(tmp_path):
    there, also = Listener(), Listener()
    out = tmp_path / "net.json"
    text, _ = sluice("profile", "--links-to", f"{there.address},{also.address}", "-o", out)
    assert "links alone" in text and "net-tcp to 2" in text
    there.end(), also.end()
    found = json.loads(out.read_text())
    assert [(x["transport"], x["peers"]) for x in found["links"]] == [("net-tcp", 1), ("net-tcp", 2)]
    for link in found["links"]:
        assert link["alpha"] >= 0 and link["byte"] >= 0 and link["points"][0][0] == 64
        assert all(us > 0 for _, us in link["points"])
    alone = found["links"][0]["points"]
    assert alone[-1][0] > 1e6 and alone[-1][1] > alone[0][1]
    # without stages it stands for nothing else; with them plan and simulate take the link
    _, err = sluice("plan", "mixtral-8x7b", "--cluster", "cpu-4x10g", "--profile", out, code=2)
    assert "has no times of stages" in err
    stage = {"fixed": 10, "floor": 200, "row": 10, "key": 0.01}
    found |= {"model": "mixtral-8x7b",
              "stages": {k: stage for k in ("attention", "router", "expert", "head")}}
    tpot = {}
    for alpha in (10, 50000):
        found["links"][0]["alpha"] = found["links"][1]["alpha"] = alpha
        out.write_text(json.dumps(found))
        text, _ = sluice("plan", "mixtral-8x7b", "--cluster", "cpu-4x10g", "--profile", out, "--slo-tpot", "none",
                         "--json")
        dep = next(r for r in json.loads(text)["deployments"] if r["schedule"] == "dep")
        tpot[alpha] = dep["layer_us"]["link"]
        assert not dep["estimated"] and not dep["derived"]
    assert tpot[50000] > tpot[10] + 49000
    run = ["simulate", "mixtral-8x7b", "--attention", 1, "--experts", 1, "--profile", out, "--requests", 2, "--json"]
    slow, _ = sluice(*run, "--link", "network")
    fast, _ = sluice(*run, "--link", "10:100")
    assert json.loads(slow)["itl_ms"]["mean"] > 50 + json.loads(fast)["itl_ms"]["mean"]


def test_both_ends_hold_the_secret(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    sluice("secret", "-o", one)
    sluice("secret", "-o", two)
    there = Listener("--secret-file", one)
    _, err = sluice("profile", "--links-to", there.address, "--secret-file", two, "-o", tmp_path / "x", code=1)
    assert f"{there.address} did not answer, or has another secret" in err
    assert not (tmp_path / "x").exists()
    sluice("profile", "--links-to", there.address, "--secret-file", one, "-o", tmp_path / "x")
    there.end()


def test_nobody_waits_for_ever(tmp_path):
    there = Listener("--join-timeout", 1)
    assert "nobody came to 127.0.0.1:" in there.end(code=1)
    _, err = sluice("profile", "--links-to", there.address, code=1)
    assert "did not answer" in err


@pytest.mark.parametrize("args, says", [
    ([], "MODEL, --links-to or --listen is missing"),
    (["--listen", "here"], "'here' is not HOST:PORT"),
    (["--listen", "127.0.0.1:70000"], "is not HOST:PORT"),
    (["--listen", "0.0.0.0:0"], "needs a secret"),
    (["--listen", "127.0.0.1:0", "--transport", "shm"], "does not reach other machines"),
    (["--links-to", ",,"], "is not HOST:PORT"),
    (["--links-to", "127.0.0.1:1", "--listen", "127.0.0.1:0"], "leave out MODEL and --links-to"),
])
def test_refusals(args, says):
    _, err = sluice("profile", *args, code=2)
    assert says in err and err.count("\n") == 1
