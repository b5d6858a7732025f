"""A server whose workers can be ended, its feed, requests for it to do, and samples that a test makes up."""
import contextlib
import json
import stat
import threading

import httpx
import pytest
from page_fixtures import FIXTURE, SLUICE, Server
from visit import fresh

ADMIN_KEY = "the admin key of these tests"


def admin_key_file(folder):
    key = folder / "admin.key"
    key.write_text(ADMIN_KEY)
    key.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return key


@pytest.fixture(scope="module")
def rooms(tmp_path_factory):
    if not SLUICE.exists():
        pytest.skip(f"{SLUICE} is not built")
    server = Server(FIXTURE, "--exact", "--threads", "1", "--attention", "1", "--experts", "2", "--admin-key-file", admin_key_file(tmp_path_factory.mktemp("page")))
    yield server
    server.stop_well()


@contextlib.contextmanager
def watching(server, **options):
    """An open feed: samples, one a call of next()."""
    with httpx.stream("GET", server.url + "/live", timeout=30, **options) as answer:
        # who drops the samples leaves
        yield answer, (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))


def sample_of(server):
    with watching(server) as (_, samples):
        return next(samples)


@contextlib.contextmanager
def load(server, prompts=("the river",) * 8, tokens=100):
    """Requests, one after another, for as long as it lasts."""
    over = threading.Event()
    body = {"model": "m", "prompt": list(prompts), "max_tokens": tokens, "ignore_eos": True}

    def go():
        while not over.is_set():
            httpx.post(server.url + "/v1/completions", json=body, timeout=60)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def ask_admin(server, worker, verb, key=ADMIN_KEY):
    return httpx.post(f"{server.url}/admin/workers/{worker}/{verb}", headers={"Authorization": f"Bearer {key}"}, timeout=30)


def kill(server, worker, key=ADMIN_KEY):
    return ask_admin(server, worker, "kill", key)


# The feed is what the test puts, sample by sample.
HOLD = """{
    const real = window.fetch;
    window.fetch = (url, options) => {
        if (!String(url).endsWith('/live')) return real(url, options);
        const stream = new ReadableStream({ start(to) {
            window.feed = (sample) => to.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(sample)}\\n\\n`));
            options.signal.addEventListener('abort', () => { window.feed = null; to.error(options.signal.reason); });
        } });
        return Promise.resolve(new Response(stream));
    }; }"""


def feed(browser, sample):
    browser.wait("window.feed")
    browser.js(f"window.feed({json.dumps(sample)})")


def open_held(browser, server, sample):
    """The live view, whose feed is the test's: it has shown one sample."""
    fresh(browser, server)
    browser.wait("document.querySelector('#served')?.textContent === 'm'")
    browser.js(HOLD)
    browser.js("location.hash = 'live'")
    feed(browser, sample)
    browser.wait("document.querySelector('.facts').children.length && document.querySelectorAll('.strip-row').length")
