"""The live view of the web page, its feed, and workers that are ended from it."""
import contextlib
import json
import os
import stat
import threading

import httpx
import pytest
from page_fixtures import FIXTURE, SLUICE, Server, chromium, locked, page, served  # noqa: F401
from visit import API_KEY, axe_faults, fresh

pytest.importorskip("axe_core_python", reason="axe-core (PyPI: axe-core-python) is not installed")

ADMIN_KEY = "the admin key of these tests"
WATCHERS = 8


@pytest.fixture(scope="module")
def rooms(tmp_path_factory):
    if not SLUICE.exists():
        pytest.skip(f"{SLUICE} is not built")
    key = tmp_path_factory.mktemp("page") / "admin.key"
    key.write_text(ADMIN_KEY)
    key.chmod(stat.S_IRUSR | stat.S_IWUSR)
    server = Server(FIXTURE, "--exact", "--threads", "1", "--attention", "1", "--experts", "2", "--admin-key-file", key)
    yield server
    assert server.stop() == 0


@contextlib.contextmanager
def watching(server, **options):
    """An open feed: samples, one a call of next()."""
    with httpx.stream("GET", server.url + "/live", timeout=30, **options) as answer:
        # who drops the samples leaves
        yield answer, (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))


@contextlib.contextmanager
def load(server):
    """Requests, one after another, for as long as it lasts."""
    over = threading.Event()
    body = {"model": "m", "prompt": ["the river"] * 8, "max_tokens": 100, "ignore_eos": True}

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


def kill(server, worker, key=ADMIN_KEY):
    return httpx.post(f"{server.url}/admin/workers/{worker}/kill", headers={"Authorization": f"Bearer {key}"}, timeout=30)


def test_samples_tell_who_did_what(rooms):
    with watching(rooms) as (answer, samples):
        assert answer.headers["content-type"] == "text/event-stream"
        with load(rooms):
            for sample in samples:
                kinds = sample["kinds"]
                views = [w["view"] for w in sample["workers"]]
                names = [{kinds[s[0]][0] for s in v["spans"]} if v else set() for v in views]
                if "attention" in names[0] and "expert" in names[1] and "expert" in names[2] and views[0]["flights"]:
                    break
        assert {kinds[f[0]][0] for f in views[0]["flights"]} <= {"experts", "step"}
        assert {s[0] for s in views[0]["sent"]} >= {1, 2}
        for v in views:
            begins = [s[1] for s in v["spans"]]
            assert 0 <= v["whole_from_us"] <= sample["window_us"]
            assert v["same_clock"] and begins == sorted(begins) and 0 <= begins[0]
            assert all(b + s[2] <= sample["window_us"] + 1 for b, s in zip(begins, v["spans"]))
        assert len(sample["experts"]) == len(sample["moe_layers"]) and sum(map(sum, sample["experts"])) > 0
        assert sample["tokens"][1] > 0 and sample["recovery"]["lost"] == 0


def test_few_may_watch(rooms):
    with contextlib.ExitStack() as stack:
        watchers = [stack.enter_context(watching(rooms)) for _ in range(WATCHERS)]
        for answer, samples in watchers:
            assert answer.status_code == 200 and next(samples)["serving"]
        refused, _ = stack.enter_context(watching(rooms))
        refused.read()
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "too_many_watchers"
    for _ in range(200):  # those that left make room
        with watching(rooms) as (answer, _):
            if answer.status_code == 200:
                return
    pytest.fail("watchers that left still count")


def test_the_feed_needs_the_key(locked):
    assert httpx.get(locked.url + "/live").status_code == 401
    with watching(locked, headers={"Authorization": f"Bearer {API_KEY}"}) as (answer, samples):
        assert next(samples)["workers"][0]["role"] == "both"


def test_who_may_be_killed(rooms, served, locked, tmp_path):
    assert kill(rooms, 1, "wrong").status_code == 401
    unknown = kill(rooms, 9)
    assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "unknown_worker"
    assert kill(served, 0).status_code == 404  # no admin key: no such path
    key = tmp_path / "admin.key"
    key.write_text(ADMIN_KEY)
    key.chmod(stat.S_IRUSR | stat.S_IWUSR)
    alone = Server(FIXTURE, "--threads", "1", "--admin-key-file", key)
    try:
        refused = kill(alone, 0)
        assert refused.status_code == 409 and refused.json()["error"]["code"] == "not_local"
    finally:
        assert alone.stop() == 0


def test_a_worker_is_ended_while_somebody_watches_and_the_answer_goes_on(chromium, rooms):
    page = chromium
    fresh(page, rooms, "live")
    page.js(f"""sessionStorage.setItem('sluice.key.admin', {json.dumps(ADMIN_KEY)});
        localStorage.setItem('sluice.sampling', '{{"temperature": 0, "ignore_eos": true, "max_tokens": 150}}')""")
    page.reload()
    page.wait("document.querySelectorAll('.room-end:not([hidden])').length === 3")
    before = rooms.workers()[2]
    page.js("location.hash = 'chat'")
    page.js("""{ const timer = setInterval(() => {
        if (!document.querySelector('.answer .stats')?.textContent) return;
        clearInterval(timer);
        const end = document.querySelector("[aria-label='End worker 2']");
        end.click(); end.click(); }, 1); }""")
    page.type("#prompt", "Where did the river go?")
    page.enter()
    page.wait("document.querySelector('.answer:not(.running) .stats')?.textContent.includes('150 tokens')")
    body = {"model": "m", "messages": [{"role": "user", "content": "Where did the river go?"}], "temperature": 0, "ignore_eos": True, "max_tokens": 150}
    want = httpx.post(rooms.url + "/v1/chat/completions", json=body, timeout=60).json()["choices"][0]["message"]["content"]
    page.js("location.hash = 'live'")
    page.wait("document.querySelector('.news').textContent.includes('expert worker 2')")
    page.wait("document.querySelectorAll('.room[data-state=serving]').length === 3")
    assert rooms.workers()[2] != before and os.path.exists(f"/proc/{rooms.workers()[2]}")
    kept = page.js("import(new URL('page/store.js', document.baseURI)).then(async (m) => { await m.openStore(); return (await m.allConversations())[0].messages[1].content; })")
    assert kept == want
    assert page.problems == []


def test_workers_that_have_everything_are_linked_to_each_other(chromium):
    server = Server(FIXTURE, "--exact", "--threads", "1", "--attention", "3", "--schedule", "ep")
    try:
        fresh(chromium, server, "live")
        with load(server):
            chromium.wait("document.querySelectorAll('.wire').length === 6")  # the coordinator's three, and each pair
            assert chromium.js("document.querySelector('.rooms').classList.contains('together')")
            chromium.wait("[...document.querySelectorAll('.wire title')].slice(3).some((t) => parseFloat(t.textContent) > 0)")
            chromium.wait("document.querySelectorAll('.strip-label')[0]?.textContent === 'worker 0'")
        assert axe_faults(chromium) == []
        assert chromium.problems == []
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("width, scheme", [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_in_the_live_view(chromium, rooms, width, scheme):
    fresh(chromium, rooms, "live")
    chromium.size(width, 800)
    chromium.scheme(scheme)
    chromium.wait("document.querySelector('.room-share') && document.querySelector('.strip-legend')")
    assert axe_faults(chromium) == []
    chromium.js("document.querySelector('.heat').focus()")
    chromium.key("ArrowRight")
    chromium.wait("document.querySelector('.figure-words').textContent.includes('expert 1')")
    assert chromium.problems == []
