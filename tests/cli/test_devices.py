"""sluice devices, and the choice of kernels that other verbs share with it.

SLUICE_BIN names the program (default build/sluice)."""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
TINY = ROOT / "tests" / "golden" / "qwen3moe-tiny"
RUN = ["run", TINY, "--ids", "3,17,41", "-n", "8", "--ignore-eos", "--json", "--log", "info"]


def sluice(*args, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    done = subprocess.run([SLUICE, *map(str, args)], capture_output=True, text=True, timeout=60,
                          env={**clean, **(env or {})})
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def devices(*args, env=None):
    return json.loads(sluice("devices", "--json", *args, env=env)[0])


def measured_and_kept(folder):
    """What is said at a measurement and after it. What other programs have disturbed is not kept, and measured again."""
    said = [devices("--kernel-cache", folder)]
    while len(said) < 2 or said[-1]["from"] == "measured" and len(said) < 20:
        said.append(devices("--kernel-cache", folder))
    return said[-2:]


def test_what_was_measured_is_kept_and_explains_the_choice(tmp_path):
    first, second = measured_and_kept(tmp_path / "a" / "b")
    runs = [t["name"] for t in first["tables"] if t["runs"]]
    merit = [t["name"] for t in first["tables"] if t["runs"] and t["by_merit"]]
    base = next(t for t in runs if t not in merit)
    assert runs[-1] == "ref" and first["isa"].split(",")[0] == base
    assert first["from"] == ("measured" if merit else "alone")
    assert second["from"] == ("kept" if merit else "alone") and second["kernels"] == first["kernels"]
    for row in first["kernels"]:
        took = row["ns"]
        assert row["table"] == base or took[row["table"]] * 100 < took[base] * 90, row
        assert set(took) <= {base, *merit}
    text = sluice("devices", "--kernel-cache", tmp_path / "a" / "b")[0]
    assert first["cpu"] in text and all(row["kernel"] in text for row in first["kernels"])
    if merit:
        again = devices("--kernel-cache", tmp_path / "a" / "b", "--remeasure")
        assert again["from"] == "measured" and again["file"] == first["file"]
        assert len(list((tmp_path / "a" / "b").iterdir())) == 1


def test_the_folder_follows_the_environment(tmp_path):
    got = devices(env={"XDG_CACHE_HOME": str(tmp_path)})
    assert got["from"] == "alone" or got["file"].startswith(f"{tmp_path}/sluice/kernels-")
    assert devices(env={"XDG_CACHE_HOME": str(tmp_path), "SLUICE_KERNEL_CACHE": "off"})["file"] == ""


@pytest.mark.parametrize("how", [[], ["--transport", "shm", "--attention", "1", "--experts", "2"]])
def test_every_choice_gives_the_same_ids_and_one_process_measures(tmp_path, how):
    known = devices("--kernel-cache", tmp_path)
    alone = known["from"] == "alone"
    mix = f"{known['isa']},swiglu=ref,add=ref"
    want = None
    for args, said in ((["--isa", "ref"], 0), (["--isa", mix], 0), (["--kernel-cache", "off"], 1),
                       (["--kernel-cache", "/dev/null/no"], 1), (["--kernel-cache", tmp_path], 1)):
        out, err = sluice(*RUN, *how, *args)
        ids = json.loads(out)["ids"]
        want = want or ids
        assert ids == want, args
        assert err.count("kernels: ") == said, err
        if not alone and said:
            assert ("as measured before" in err) == (args[1] == tmp_path), err


def test_a_damaged_file_costs_a_measurement(tmp_path):
    _, known = measured_and_kept(tmp_path)
    if known["from"] == "alone":
        pytest.skip("one table runs here: nothing is kept")
    path = pathlib.Path(known["file"])
    whole = path.read_bytes()
    for damage in (b"", whole[:-1], whole[: len(whole) // 2], whole + b"x", b"\0" * 70000, os.urandom(3000)):
        path.write_bytes(damage)
        assert [said["from"] for said in measured_and_kept(tmp_path)] == ["measured", "kept"]
