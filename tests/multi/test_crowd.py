"""200 streams at once, some of which leave half-way or read slowly: all others are answered in full, and at the
end the books balance. tests/soak/crowd.sh does the same with 5,000."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
FIXTURE = ROOT / "tests" / "golden" / "qwen3moe-tiny"
sys.path.insert(0, str(ROOT / "tests" / "soak"))
import crowd  # noqa: E402


@pytest.mark.parametrize("options, running", [
    (["--max-num-seqs", "200"], 100),
    (["--max-num-seqs", "200", "--attention", "1", "--experts", "1"], 100),
    (["--max-num-seqs", "20"], 20),
], ids=["colocated", "1+1", "queued"])
def test_crowd(options, running):
    for _ in range(3):  # a busy machine may look at the figures too rarely to see the peak
        f = crowd.run(SLUICE, FIXTURE, 200, 100, options)
        assert f["tokens"] >= 180 * 100
        if f["peak_running"] >= running and f["peak_connections"] >= 180:
            break
    assert f["peak_running"] >= running and f["peak_connections"] >= 180


def test_crowd_in_a_small_pool():
    f = crowd.run(SLUICE, FIXTURE, 200, 80, ["--max-num-seqs", "200", "--ctx", "128", "--kv-pages", "90"])
    assert f["preempted"] > 0
    assert f["tokens"] >= 180 * 80
