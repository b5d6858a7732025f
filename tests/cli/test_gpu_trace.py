"""When calls ran on a GPU: rows of devices in traces, by the tests' driver."""
import json

import pytest

from test_gpu import FAKE, FIXTURE, sluice, wide  # noqa: F401

pytestmark = pytest.mark.skipif(not FAKE.exists(), reason="no driver of the tests beside the program")
IDS = ",".join(str(3 + 7 * i) for i in range(6))


def traced(tmp_path, model, *how, n=8, **variables):
    """Spans and the path of the trace of a run, which says what one without a trace says."""
    path = tmp_path / "trace.json"
    ask = ["run", model, "--ids", IDS, "-n", n, "--ignore-eos", "--temp", 0, "--json", *how]
    plain, done = sluice(*ask, driver=FAKE, **variables), sluice(*ask, "--trace", path, driver=FAKE, **variables)
    assert plain.returncode == 0 and done.returncode == 0, plain.stderr + done.stderr
    assert json.loads(done.stdout)["ids"] == json.loads(plain.stdout)["ids"]
    return [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X"], path


def on_device(spans, pid):
    """What its GPU did, in order: one thing at a time, and none before its thread had begun or after it had ended."""
    row = sorted((e for e in spans if e["pid"] == pid and e["cat"] == "device"), key=lambda e: e["ts"])
    own = [e for e in spans if e["pid"] == pid and e["tid"] == 0]
    assert {e["tid"] for e in row} == {1000}
    for one, after in zip(row, row[1:]):
        assert one["ts"] + one["dur"] <= after["ts"] + 20, (one, after)
    begin, end = min(e["ts"] for e in own), max(e["ts"] + e["dur"] for e in own)
    assert all(begin - 2000 <= e["ts"] and e["ts"] + e["dur"] <= end + 2000 for e in row), (begin, end, row[0], row[-1])
    return row


def names(row):
    return {e["name"] for e in row}


def test_attention_on_a_gpu_and_experts_on_a_cpu(tmp_path):
    spans, path = traced(tmp_path, FIXTURE, "--attention", 1, "--experts", 1, "--device", "cuda:0,cpu", "--schedule", "pingpong")
    row = on_device(spans, 0)
    assert names(row) >= {"embed", "attention", "router", "pack", "merge", "head"} and "expert" not in names(row)
    assert not [e for e in spans if e["cat"] == "device" and e["pid"] == 1]
    blocks = {e["args"]["layer"] for e in spans if e["name"] == "attention" and e["cat"] == "execute"}
    for block in blocks:
        rows = [sum(e["args"]["rows"] for e in spans if e["name"] == "attention" and e["cat"] == cat and e["args"]["layer"] == block) for cat in ("device", "execute")]
        assert rows[0] == rows[1] == 6 + 7, (block, rows)  # the prompt, and all ids but the last
    said = json.loads(sluice("trace", path, "--json").stdout)
    gpu, cpu = said["workers"]
    assert gpu["device_ms"] > 0 and gpu["device_kinds_ms"]["attention"] > 0 and "device_ms" not in cpu
    assert abs(gpu["device_ms"] - sum(gpu["device_kinds_ms"].values())) < 1e-3
    text = sluice("trace", path).stdout
    assert "devices, share of the window" in text and "worker 0 (attention)      computes " in text
    picture = tmp_path / "trace.svg"
    assert sluice("trace", path, "--svg", picture).returncode == 0
    assert picture.read_text().count(">device</text>") == 1


def test_experts_on_a_gpu(tmp_path):
    spans, _ = traced(tmp_path, FIXTURE, "--attention", 1, "--experts", 2, "--device", "cpu,cuda:0,cuda:1", "--schedule", "aep", n=4)
    assert not [e for e in spans if e["cat"] == "device" and e["pid"] == 0]
    for pid in (1, 2):
        row = on_device(spans, pid)
        assert names(row) >= {"expert", "pack"}
        rows = [sum(e["args"]["rows"] for e in spans if e["name"] == "expert" and e["cat"] == cat and e["pid"] == pid) for cat in ("device", "execute")]
        assert rows[0] == rows[1] > 0, rows


def test_steps_that_are_graphs_are_one_span(tmp_path, wide):  # noqa: F811
    """With a seed the driver does nothing before somebody waits for it: a time that is asked for behind a mark, but was put behind it, is not there."""
    spans, _ = traced(tmp_path, wide, "--device", "cuda:0", "--ctx", 128, n=12, SLUICE_CUDA_GRAPHS="try", SLUICE_FAKE_CUDA_SEED="5")
    row = on_device(spans, 0)
    graphs = [e for e in row if e["name"] == "graph"]
    assert len(graphs) > 4 and all(e["args"]["rows"] == 1 for e in graphs)
    steps = [e for e in spans if e["name"] == "step"]
    assert len([e for e in row if e["name"] in ("graph", "embed")]) == len(steps)  # each began in one way
    assert {"inside", "attention", "head"} <= names(row)
