"""The live view of the web page, its feed, and workers that are ended from it."""
import contextlib
import json
import os

import httpx
import pytest
from page_fixtures import FIXTURE, Server, chromium, locked, page, served  # noqa: F401
from rooms_fixtures import ADMIN_KEY, admin_key_file, kill, load, rooms, watching  # noqa: F401
from visit import API_KEY, axe_faults, fresh

pytest.importorskip("axe_core_python", reason="axe-core (PyPI: axe-core-python) is not installed")

WATCHERS = 8


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
    alone = Server(FIXTURE, "--threads", "1", "--admin-key-file", admin_key_file(tmp_path))
    try:
        refused = kill(alone, 0)
        assert refused.status_code == 409 and refused.json()["error"]["code"] == "not_local"
    finally:
        assert alone.stop() == 0


# Ends worker 2 from the live view, while an answer of the chat comes there.
END_IT = """{ const timer = setInterval(() => {
    const tail = document.querySelector('.tail'), live = document.querySelector('#live');
    if (tail.dataset.state !== 'running' || !tail.querySelector('.muted').textContent) return;
    if (live.hidden) { location.hash = 'live'; return; }
    clearInterval(timer);
    const place = tail.getBoundingClientRect(), end = document.querySelector("[aria-label='End worker 2']"), there = end.getBoundingClientRect();
    window.atEnd = { tokens: parseInt(tail.querySelector('.muted').textContent), text: tail.querySelector('.tail-text').textContent,
        together: place.height > 0 && place.bottom <= innerHeight && there.height > 0 && there.bottom <= innerHeight };
    end.click(); end.click(); }, 1); }"""
MESSAGE = "import(new URL('page/store.js', document.baseURI)).then(async (m) => { await m.openStore(); return (await m.allConversations())[0].messages[1].content; })"


def test_a_worker_is_ended_where_the_answer_is_seen_to_go_on(chromium, rooms):
    page, tokens = chromium, 450
    fresh(page, rooms, "live")
    page.js(f"""sessionStorage.setItem('sluice.key.admin', {json.dumps(ADMIN_KEY)});
        localStorage.setItem('sluice.sampling', '{{"temperature": 0, "ignore_eos": true, "max_tokens": {tokens}}}')""")
    page.reload()
    page.wait("document.querySelectorAll('.room-end:not([hidden])').length === 3")
    assert page.js("document.querySelector('.tail').hidden")
    before = rooms.workers()[2]
    page.js("location.hash = 'chat'")
    page.js(END_IT)
    page.type("#prompt", "Where did the river go?")
    page.enter()
    page.wait(f"window.atEnd && document.querySelector('.tail[data-state=done] .muted')?.textContent === '{tokens} tokens'")
    at_end = page.js("window.atEnd")
    assert at_end["together"] and at_end["tokens"] < tokens
    assert not page.js("document.querySelector('#live').hidden")
    body = {"model": "m", "messages": [{"role": "user", "content": "Where did the river go?"}], "temperature": 0, "ignore_eos": True, "max_tokens": tokens}
    want = httpx.post(rooms.url + "/v1/chat/completions", json=body, timeout=60).json()["choices"][0]["message"]["content"]
    shown = page.js("document.querySelector('.tail-text').textContent")
    assert len(shown) > 100 and want.endswith(shown) and shown != at_end["text"]
    page.wait("document.querySelector('.news').textContent.includes('expert worker 2')")
    page.wait("document.querySelectorAll('.room[data-state=serving]').length === 3")
    assert rooms.workers()[2] != before and os.path.exists(f"/proc/{rooms.workers()[2]}")
    page.wait("document.querySelector('.news').textContent.match(/Requests waited \\d+\\.\\d\\d s: /)")
    assert axe_faults(page) == []
    assert page.js(MESSAGE) == want
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
