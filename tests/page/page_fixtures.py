"""One browser and one server for the tests of the page; every test begins on a page that knows nothing. No conftest.py: tests/api has
one, and its tests import from it by that name."""
import pathlib
import sys

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]
from browser import CHROMIUM, Browser  # noqa: E402
from served import ROOT, SLUICE, Server  # noqa: E402
from visit import API_KEY, fresh  # noqa: E402

FIXTURE = ROOT / "tests" / "golden" / "qwen3moe-tiny"


@pytest.fixture(scope="session")
def chromium():
    if not CHROMIUM:
        pytest.skip("chromium is not installed (tools/install-deps.sh page)")
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def served():
    if not SLUICE.exists():
        pytest.skip(f"{SLUICE} is not built")
    server = Server(FIXTURE, "--exact", "--threads", "1")
    yield server
    server.stop_well()


@pytest.fixture(scope="session")
def locked():
    if not SLUICE.exists():
        pytest.skip(f"{SLUICE} is not built")
    server = Server(FIXTURE, "--threads", "1", "--api-key", API_KEY)
    yield server
    server.stop_well()


@pytest.fixture
def page(chromium, served):
    fresh(chromium, served)
    chromium.wait("document.querySelector('#served').textContent === 'm'")
    yield chromium
    assert chromium.problems == []
