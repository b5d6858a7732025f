"""What the live view says: of real samples, and of some that are made up so that the words are known."""
import copy
import json
import re
import subprocess
import time

import httpx
import pytest
from page_fixtures import FIXTURE, SLUICE, Server, chromium, served  # noqa: F401
from rooms_fixtures import ask_admin, feed, kill, load, open_held, rooms, sample_of, watching  # noqa: F401
from visit import axe_faults, fresh

pytest.importorskip("axe_core_python", reason="axe-core (PyPI: axe-core-python) is not installed")

FORGETS_S = 4  # workers that nobody asked for three seconds record nothing
WINDOW_US = 200_000


def text(page, selector):
    return page.js(f"document.querySelector({json.dumps(selector)})?.textContent")


@pytest.fixture(scope="module")
def sample(rooms):
    """One that says little: nothing is under way, nothing was lost."""
    s = sample_of(rooms)
    s.update(schedule="pingpong", lanes=2, serving=True, recovering=False, running=0, waiting=0, predicted_us=None, predicted_dense_us=None)
    s["recovery"].update(lost=0, requeued=0, rows_kept=0, rows_recomputed=0, pauses=[], why=None)
    for w in s["workers"]:
        w["time_us"] = [0] * 6
        w["view"] = {"same_clock": True, "whole_from_us": 0, "spans": [], "flights": [], "sent": []}
    return s


def changed(sample, **fields):
    new = copy.deepcopy(sample)
    new.update(fields)
    return new


# ---- blocks ----

def of_blocks(*layers, passes=10):
    """[attention us, experts us, away us, rows] of a micro-batch in each block, as counters of ten of them."""
    return [[1000 * passes * a, 1000 * passes * e, passes if away else 0, 1000 * passes * away, passes * n] for a, e, away, n in layers]


BLOCKS = of_blocks((40, 0, 0, 0), (20, 300, 80, 8), (20, 350, 100, 8), (20, 280, 60, 8))
NOTHING = [[0] * 5] * 4


def shown_lines(page):
    """Where predictions are drawn, in microseconds of the picture."""
    return page.js("""(() => { const bars = document.querySelector('.bars'), all = bars.getBoundingClientRect();
        const total = (bar) => [...bar.children].reduce((sum, part) => sum + part.getBoundingClientRect().height, 0);
        return { heights: [...bars.querySelectorAll('.bar')].map((bar) => total(bar) / all.height),
            lines: [...bars.querySelectorAll('.bar-line')].map((line) => [line.textContent, (all.bottom - line.getBoundingClientRect().bottom) / all.height,
                [...line.querySelectorAll('.bar-piece')].map((piece) => { const r = piece.getBoundingClientRect(); return [r.left - all.left, r.right - all.left].map((x) => x / all.width); })]) }; })()""")


def words(page):
    return page.js("[...document.querySelectorAll('.bars ~ .figure-words')].map((p) => p.textContent)")


def test_each_block_beside_its_prediction(chromium, rooms, sample):
    page = chromium
    first = changed(sample, layers=NOTHING, moe_layers=[1, 2, 3], top_k=2)
    open_held(page, rooms, first)
    assert words(page)[0] == "Nothing has come by so far."
    known = {"predicted_us": [60, 5000], "predicted_rows": [16, 512], "predicted_holds": True, "predicted_dense_us": [30, 2000]}
    feed(page, changed(first, layers=BLOCKS, **known))
    page.wait("document.querySelectorAll('.bar span').length === 8")  # two parts each
    time.sleep(0.5)  # bars grow
    slowest, measured, predicted = words(page)
    assert slowest == "Block 2: 120 µs; attention 20 µs and away 100 µs, of that kernels of its experts 350 µs. The slowest lately."
    assert measured == "Measured: 100 µs a block with experts, with 8 rows at an attention worker, in 2 micro-batches."
    assert predicted == ("Predicted: 60 µs with 16 rows that decode, 5.00 ms with 512 rows of prompts, above this picture. "
                         "One time for all blocks with experts; for those without, 30 µs a micro-batch that decodes, 2.00 ms one of prompts, above this picture.")
    shown = shown_lines(page)
    assert shown["heights"] == pytest.approx([40 / 120, 100 / 120, 1, 80 / 120], abs=0.02)
    assert [line[0] for line in shown["lines"]] == ["predicted, decode", ""]  # the second one: of the block without experts
    assert [line[1] for line in shown["lines"]] == pytest.approx([0.5, 0.25], abs=0.02)
    assert [line[2] for line in shown["lines"]] == [[pytest.approx([0.25, 1], abs=0.01)], [pytest.approx([0, 0.25], abs=0.01)]]
    page.js("document.querySelector('.bars').focus()")
    page.key("ArrowRight")
    page.wait("document.querySelector('.bars').getAttribute('aria-label').includes('Block 0: 40 µs; attention and its own feed-forward 40 µs')")
    assert axe_faults(page) == []
    # another plan: what was said does not hold, and is not drawn
    twice = [[2 * n for n in layer] for layer in BLOCKS]
    feed(page, changed(first, layers=twice, **{**known, "predicted_holds": False}))
    page.wait("!document.querySelector('.bar-line')")
    assert words(page)[2] == "The prediction (60 µs with 16 rows) was for other workers than take part now, and is not drawn."
    # experts in every block: one line a point, from side to side
    feed(page, changed(first, layers=[[3 * n for n in layer] for layer in BLOCKS], moe_layers=[0, 1, 2, 3], **{**known, "predicted_dense_us": None}))
    page.wait("document.querySelectorAll('.bar-piece').length === 1")
    assert words(page)[2].endswith(" One time for all blocks.") and shown_lines(page)["lines"][0][2] == [pytest.approx([0, 1], abs=0.01)]
    feed(page, changed(first, layers=[[2 * n for n in layer] for layer in twice]))
    page.wait("[...document.querySelectorAll('.figure-words')].at(-1).textContent === 'No prediction is known: --schedule auto makes one, for several workers on this machine.'")
    assert chromium.problems == []


def samples_until(server, condition, seconds=60):
    end = time.monotonic() + seconds
    with watching(server) as (_, samples):
        for s in samples:
            if condition(s):
                return s
            assert time.monotonic() < end, s


def test_a_prediction_holds_for_its_workers_alone(rooms):
    s = samples_until(rooms, lambda s: all(w["state"] == "serving" for w in s["workers"]))
    assert s["predicted_holds"] and s["predicted_us"][0] > 0 and s["predicted_rows"][1] >= s["predicted_rows"][0] > 0
    assert 0 < s["predicted_dense_us"][0] <= s["predicted_dense_us"][1]
    assert s["hosts"] == [[1, 2]] and s["sequencer"] == 1
    assert ask_admin(rooms, 1, "drain").status_code == 202
    s = samples_until(rooms, lambda s: s["workers"][1]["state"] == "drained")
    assert not s["predicted_holds"] and s["hosts"] == [[2]] and s["sequencer"] == 2
    metrics = httpx.get(rooms.url + "/metrics").text
    assert 'sluice:schedule_predicted_layer_seconds{rows="decode"} 0\n' in metrics
    assert ask_admin(rooms, 1, "join").status_code == 202
    s = samples_until(rooms, lambda s: s["workers"][1]["state"] == "serving" and s["predicted_holds"])
    assert s["hosts"] == [[1, 2]] and s["sequencer"] == 1 and s["plan"] >= 3


# ---- rooms ----

def waiting_for(page, sample, worker, reason, block):
    """What worker's card says while it waits all the time."""
    kinds = [k[0] for k in sample["kinds"]]
    new = copy.deepcopy(sample)
    new["workers"][worker]["view"]["spans"] = [[kinds.index("wait"), 0, WINDOW_US, 0, block, sample["waits"].index(reason)]]
    feed(page, new)
    page.wait(f"document.querySelectorAll('.room-words')[{worker}].textContent.startsWith('waits for ')")
    return page.js(f"document.querySelectorAll('.room-words')[{worker}].textContent")


def test_who_is_waited_for(chromium, rooms, sample):
    page = chromium
    apart = changed(sample, hosts=[[1, 2], [2], [1]], moe_layers=[1, 2, 3], sequencer=1)
    open_held(page, rooms, apart)
    for worker, reason, block, want in [(0, "experts", 1, "experts of workers 1, 2"), (0, "experts", 2, "experts of worker 2"), (0, "round", 0, "the next round, from worker 1"),
                                        (1, "dispatch", 1, "rows of worker 0"), (2, "members", 1, "rows of worker 0")]:
        assert waiting_for(page, apart, worker, reason, block) == f"waits for {want}"
        feed(page, apart)
        page.wait(f"document.querySelectorAll('.room-words')[{worker}].textContent === 'idle'")
    assert waiting_for(page, changed(apart, schedule="aep"), 0, "experts", 0) == "waits for the experts"  # of whichever block
    feed(page, apart)
    page.wait("document.querySelectorAll('.room-words')[0].textContent === 'idle'")
    assert waiting_for(page, changed(apart, hosts=[[1, 2, 3, 4, 5]]), 0, "experts", 1) == "waits for the experts"  # too many to name
    assert chromium.problems == []


def test_links_say_their_rate_in_words(chromium, rooms, sample):
    page = chromium
    s = changed(sample)
    s["workers"][0]["view"]["sent"] = [[1, 3, 25_000], [2, 1, 100], [-1, 1, 250]]
    s["workers"][1]["view"]["sent"] = [[0, 3, 50_000]]
    s["workers"][1]["view"]["whole_from_us"] = WINDOW_US // 2  # all of that in half the time
    open_held(page, rooms, s)
    page.wait("document.querySelector('.room-links').textContent")
    assert page.js("[...document.querySelectorAll('.room-links')].map((n) => n.checkVisibility() && n.textContent)") == [
        "Links: with worker 1 5.0 Mbit/s · to the coordinator 10 kbit/s · with worker 2 4 kbit/s", "Links: with worker 0 5.0 Mbit/s", "Links: with worker 0 4 kbit/s"]
    fresh(page, rooms, "live")
    with load(rooms):
        page.wait("/with worker [12] [1-9]\\d* kbit|with worker [12] \\d*\\.\\d Mbit/.test(document.querySelector('.room-links')?.textContent)")
    assert chromium.problems == []


def test_what_the_coordinator_does(chromium, rooms, sample):
    page = chromium
    fresh(page, rooms, "live")
    with load(rooms):
        page.wait("/^serves [1-8] requests?$/.test(document.querySelector('.hub-now')?.textContent)")
        page.wait("/ · CPU of this process: \\d+ % of a core$/.test(document.querySelector('.hub .room-notes').textContent)")
    open_held(page, rooms, sample)
    gone = {**sample["recovery"], "why": "worker 2 (expert) is gone"}
    for fields, want in [({"serving": False}, "waits for workers"), ({"recovering": True, "recovery": gone}, "recovers: worker 2 (expert) is gone"), ({"changing": True}, "changes the plan"),
                         ({"running": 1}, "serves 1 request"), ({"running": 0}, "idle")]:
        feed(page, changed(sample, **fields))
        page.wait(f"document.querySelector('.hub-now').textContent === {json.dumps(want)}")
    assert chromium.problems == []


def test_requests_that_wait_and_prompts_under_way(chromium):
    """More than there is room for, and prompts that take many steps."""
    server = Server(FIXTURE, "--threads", "1", "--max-num-seqs", "2", "--max-num-batched-tokens", "2", "--prefix-cache", "off")
    try:
        fresh(chromium, server, "live")
        with load(server, ["the river " * 40] * 12, tokens=1):
            chromium.wait("/ [1-9]\\d* waiting/.test(document.querySelector('.facts')?.textContent)")
            chromium.wait("/\\d+ of \\d{2,} rows of prompts/.test(document.querySelector('.room:not(.hub) .room-notes')?.textContent)")
        done, rows = map(int, re.search(r"(\d+) of (\d+) rows of prompts", text(chromium, ".room:not(.hub) .room-notes") or "0 of 1 rows of prompts").groups())
        assert 0 <= done <= rows
        assert chromium.problems == []
    finally:
        assert server.stop() == 0


# ---- recoveries ----

def test_each_recovery_is_told_with_what_it_cost(chromium, rooms, sample):
    """The server tells the last ones, also those of before somebody looked; a shorter one than the longest, too."""
    page = chromium
    old = changed(sample, recovery={**sample["recovery"], "lost": 1, "pauses": [[0, 3600.0, 0.9, "worker 1 is gone"]]})
    open_held(page, rooms, old)
    hour_ago = page.js("new Date(Date.now() - 3600e3).toLocaleTimeString()")
    said = page.wait("document.querySelector('.news').textContent.includes('Requests waited 0.90 s: worker 1 is gone')") or text(page, ".news time")
    assert said.split(":")[0] == hour_ago.split(":")[0]
    new = changed(old, recovery={**old["recovery"], "lost": 2, "requeued": 3, "pauses": [*old["recovery"]["pauses"], [1, 0.5, 0.2, "worker 2 is gone"]]})
    feed(page, new)
    page.wait("document.querySelector('.news').textContent.includes('Requests waited 0.20 s: worker 2 is gone')")
    lines = page.js("[...document.querySelectorAll('.news li')].map((n) => n.textContent)")
    assert any("A worker was lost" in line for line in lines) and any("3 requests went on elsewhere" in line for line in lines) and len(lines) == 4
    feed(page, new)  # is told once
    page.js("location.hash = 'chat'")
    page.wait("!window.feed")
    time.sleep(3.2)
    page.js("location.hash = 'live'")
    feed(page, changed(new, recovery={**new["recovery"], "lost": 3, "rows_recomputed": 70, "pauses": [*new["recovery"]["pauses"], [2, 2.0, 0.3, "worker 1 is gone again"]]}))
    page.wait("document.querySelector('.news').textContent.includes('0.30 s: worker 1 is gone again')")
    lines = page.js("[...document.querySelectorAll('.news li')].map((n) => n.textContent)")
    assert len(lines) == 7 and "while nobody looked A worker was lost" in lines and "while nobody looked 70 rows were computed again" in lines
    assert "while" not in next(line for line in lines if "gone again" in line)  # the server knows when that was
    feed(page, sample)  # of a server that was started since
    feed(page, changed(sample, recovery={**sample["recovery"], "pauses": [[0, 0.0, 0.1, "worker 2 is gone"]]}))
    page.wait("document.querySelector('.news').textContent.includes('Requests waited 0.10 s')")
    assert axe_faults(page) == []
    assert chromium.problems == []


def test_samples_have_what_recoveries_cost(rooms):
    before = sample_of(rooms)["recovery"]
    with load(rooms):
        assert kill(rooms, 1).status_code == 202
        s = samples_until(rooms, lambda s: s["recovery"]["lost"] > before["lost"] and not s["recovering"] and len(s["recovery"]["pauses"]) > 0
                          and s["recovery"]["pauses"][-1][0] > (before["pauses"][-1][0] if before["pauses"] else -1))
    number, ago, waited, why = s["recovery"]["pauses"][-1]
    assert 0 < waited <= s["recovery"]["longest_pause_s"] + 0.001 and 0 <= ago < 60 and "1" in why
    samples_until(rooms, lambda s: all(w["state"] == "serving" for w in s["workers"]))


# ---- what is recorded, and how it is painted ----

def n_recorded(sample):
    """Spans of the window, of all workers."""
    return sum(len(w["view"][name]) for w in sample["workers"] if w["view"] for name in ("spans", "flights"))


def test_who_is_not_watched_records_nothing(rooms):
    """A worker answers with what it has, and then begins to record: the first answer after a while is empty, however much was done."""
    with load(rooms):
        samples_until(rooms, n_recorded)
        begun = time.monotonic()
        soon = sample_of(rooms)
        assert n_recorded(soon) or time.monotonic() - begun > 2  # a machine that stood still
        time.sleep(FORGETS_S)
        late = sample_of(rooms)
        assert late["tokens"][1] > soon["tokens"][1] and n_recorded(late) == 0
        samples_until(rooms, n_recorded)


def test_colours_are_those_of_trace(tmp_path):
    """A server's run as a picture, and its feed: the same colour for the same kind, for each micro-batch."""
    record, picture = tmp_path / "run.json", tmp_path / "run.svg"
    server = Server(FIXTURE, "--threads", "1", "--attention", "1", "--experts", "2", "--schedule", "pingpong", "--microbatches", "2", "--trace", record)
    try:
        httpx.post(server.url + "/v1/completions", json={"model": "m", "prompt": ["the river"] * 4, "max_tokens": 8, "ignore_eos": True}, timeout=60)
        said = sample_of(server)["kinds"]
    finally:
        assert server.stop() == 0
    subprocess.run([str(SLUICE), "trace", str(record), "--svg", str(picture)], check=True, capture_output=True, timeout=60)
    svg = picture.read_text()
    fills = {(int(paint), int(shade)): colour for paint, shade, colour in re.findall(r"\.c(\d+)_(\d)\{fill:(#[0-9a-f]{6})\}", svg)}
    named = {name: int(paint) for paint, name in re.findall(r'<rect class="c(\d+)_0"[^>]*width="14"[^>]*/>\s*<text[^>]*>([a-z ]+)</text>', svg)}
    kinds = {name: (colour, shades[0] if shades else None) for name, _, colour, *shades in said}
    compared = [name for name in named if name in kinds]
    assert len(compared) >= 8 and {"attention", "expert", "wait", "send"} <= set(compared)
    for name in compared:
        colour, shades = kinds[name]
        assert colour == fills[named[name], 0], name
        if shades:
            assert shades == [fills[named[name], shade] for shade in (1, 2, 3)], name
    assert kinds["attention"][1] and not kinds["wait"][1]


def test_a_gpu_has_a_row_of_its_own(chromium, rooms, sample):
    """Under its worker's, of which one has none; in words, too, and in the legend once."""
    page, s = chromium, changed(sample)
    open_held(page, rooms, s)  # without, as before anybody watched
    inside, attention = (next(i for i, k in enumerate(s["kinds"]) if k[:2] == [name, "device"]) for name in ("inside", "attention"))
    s["workers"][0]["view"]["spans"] = [[s["kinds"].index(next(k for k in s["kinds"] if k[:2] == ["attention", "execute"])), 0, 20_000, 0, 1, 0]]
    s["workers"][0]["view"]["device"] = [[attention, 10_000, 40_000, 0, 1, 0], [inside, 50_000, 100_000, 0, 1, 0]]
    feed(page, s)
    page.wait("document.querySelectorAll('.strip').length === 6")  # of three workers, two micro-batches of the first, and its GPU
    assert page.js("document.querySelectorAll('.strip').length") == 6  # of three workers, and one with two micro-batches, and its GPU
    labels = page.js("[...document.querySelectorAll('.strip-label')].map((e) => e.textContent)")
    assert [label for label in labels if label.startswith("device")] == ["device of 0"] and labels.index("device of 0") == 1, labels
    assert page.js("document.querySelectorAll('.strip')[1].getAttribute('aria-label')").endswith("inside 50 %, attention 20 %")
    at = "(() => { const c = document.querySelectorAll('.strip')[1]; return [0.1, 0.5, 0.9].map((x) => [...c.getContext('2d').getImageData(c.width * x, 5, 1, 1).data]); })()"
    colours = page.js(at)
    assert [c[:3] for c in colours[:2]] == [[int(s["kinds"][k][2][i:i + 2], 16) for i in (1, 3, 5)] for k in (attention, inside)] and colours[2][3] == 0
    assert text(page, ".strip-legend").count("attention") == 1


def test_micro_batches_have_their_shades(chromium, rooms, sample):
    page = chromium
    s = changed(sample)
    kinds = [k[0] for k in s["kinds"]]
    s["workers"][0]["view"]["spans"] = [[kinds.index("attention"), 0, 90_000, 0, 1, 0], [kinds.index("attention"), 100_000, WINDOW_US // 2, 1, 1, 0]]
    open_held(page, rooms, s)
    at = "(() => { const c = document.querySelector('.strip'); return [0.2, 0.8].map((x) => [...c.getContext('2d').getImageData(c.width * x, 5, 1, 1).data].slice(0, 3)); })()"
    attention = s["kinds"][kinds.index("attention")]
    want = [[int(c[i:i + 2], 16) for i in (1, 3, 5)] for c in (attention[2], attention[3][0])]
    assert page.js(at) == want
    assert text(page, ".strip-legend").endswith("micro-batch 0micro-batch 1")
    feed(page, changed(s, lanes=1))
    page.wait("!document.querySelector('.strip-legend').textContent.includes('micro-batch')")
    assert page.js(at) == [want[0], want[0]]


# ---- sizes ----

WIDE = "[document.documentElement, document.querySelector('main'), ...document.querySelectorAll('#live, #live .card, #live .room, .scroller')].filter((n) => n.checkVisibility() && n.scrollWidth > n.clientWidth + 1).map((n) => `${n.tagName}.${n.className} ${n.scrollWidth} > ${n.clientWidth}`)"


@pytest.mark.parametrize("width", [360, 1920])
def test_nothing_is_wider_than_the_screen(chromium, rooms, width):
    page = chromium
    fresh(page, rooms)
    page.js("""localStorage.setItem('sluice.sampling', '{"temperature": 0, "max_tokens": 40, "ignore_eos": true}')""")
    page.reload()
    page.size(width, 900)
    page.wait("document.querySelector('#served')?.textContent === 'm'")
    page.type("#prompt", "A word of some length: " + "w" * 200)
    page.enter()
    page.wait("document.querySelector('.answer:not(.running) .stats')?.textContent.includes('token')")
    assert page.js(WIDE) == []
    page.js("location.hash = 'live'")
    with load(rooms):
        page.wait("document.querySelectorAll('.room-links').length === 3 && document.querySelectorAll('.bar').length === 4 && !document.querySelector('.tail').hidden")
        time.sleep(1)
        assert page.js(WIDE) == []
    assert chromium.problems == []
