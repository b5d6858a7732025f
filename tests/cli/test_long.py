"""Which long tests count as passed: tests/long.py and tests/state.py."""
import pathlib
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
import long  # noqa: E402
import state  # noqa: E402


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.setattr(long, "LEDGER", tmp_path / "check-long.tsv")
    monkeypatch.setattr(long, "DONE", tmp_path / "long.tsv")
    monkeypatch.setattr(state, "state", {part: f"{part}-now" for part in long.PARTS}.get)
    return tmp_path


def test_each_part_says_what_it_reaches():
    assert set(state.REACHES) == set(long.PARTS)
    for part in long.PARTS:
        for path in state.paths_of(part):
            if path != "." and not path.startswith(":"):
                assert list(state.ROOT.glob(path)), f"{part}: {path} is not there"
    assert "src/sched" in state.paths_of("chaos") and "src/serve" not in state.paths_of("chaos")
    assert len({state.state(p) for p in ("sim", "chaos", "model")}) == 3


def test_what_passed_is_known_elsewhere(ledger):
    long.note("law", ["loop, seed 1", "shm, seed 1"], 7)
    assert set(long.read_done()) == {("law", "loop, seed 1"), ("law", "shm, seed 1")}
    long.note("law", ["tcp, seed 1"], 7)
    assert ("law", "tcp, seed 1") in long.read_done()
    at = long.LEDGER.read_text().replace("law-now", "law-then").replace(state.commit(), "0" * 12)
    long.LEDGER.write_text(at)
    assert long.read_done() == {}


def test_what_has_not_changed_since_counts_whatever_the_list_was(ledger, monkeypatch):
    head = state.git("rev-parse", "HEAD").strip()
    assert state.holds("law", head, "law-by-another-list")
    assert not state.holds("law", head + "+", "law-by-another-list")
    assert not state.holds("law", "0" * 12, "law-by-another-list")
    monkeypatch.setattr(state, "state", lambda part: "now+")
    state.holds.cache_clear()
    assert not state.holds("law", head, "law-by-another-list")


def test_a_run_that_was_killed_is_noted_later(ledger):
    long.DONE.write_text("model-now\tmodel\tall\t12.5\nmodel-then\tneon\tall\t1.0\n")
    done = long.read_done()
    assert done == {("model", "all"): 12.5}
    long.note_what_is_only_here(done)
    long.note_what_is_only_here(long.read_done())
    assert [line.split("\t")[2:6] for line in long.LEDGER.read_text().splitlines()[1:]] == [["model", "all", "12", "model-now"]]


def test_changes_that_are_not_committed_count_for_nothing(ledger, monkeypatch):
    monkeypatch.setattr(state, "state", lambda part: "now+")
    long.note("model", ["all"], 1)
    assert long.read_done() == {}
