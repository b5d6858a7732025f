"""The form of latent attention that the engine takes: expanded for long chunks, never with --exact."""

import pytest

from test_cli import ROOT, sluice

FIXTURE = ROOT / "tests" / "golden" / "deepseekv2-tiny"  # from 64 rows on
IDS = [(7 * i * i + 3 * i) % 1000 + 5 for i in range(100)]


def logits(path, *extra):
    numpy = pytest.importorskip("numpy")
    sluice("logits", FIXTURE, "--ids", ",".join(map(str, IDS)), "--npy", path, "--kv-type", "f32", *extra)
    return numpy.load(path)


def test_long_chunks_expand_unless_bits_must_not_change(tmp_path):
    path = tmp_path / "logits.npy"
    exact = logits(path, "--exact")
    for rows in (13, 64, 99):
        assert (logits(path, "--exact", "--max-num-batched-tokens", rows) == exact).all()
    assert (logits(path, "--max-num-batched-tokens", 63) == exact).all()
    for extra in ([], ["--max-num-batched-tokens", 64]):
        expanded = logits(path, *extra)
        assert 0 < abs(expanded - exact).max() <= 1e-5 * abs(exact).max()
