"""The planner's view of the web page: a form, a picture, a table, and a plan to take away."""
import json
import os
import pathlib
import signal
import time

import httpx
import pytest
from page_fixtures import FIXTURE, Server, chromium, locked, page, served  # noqa: F401
from visit import API_KEY, axe_faults, fresh

pytest.importorskip("axe_core_python", reason="axe-core (PyPI: axe-core-python) is not installed")

IDLE = "document.querySelector('.plan-run button')?.textContent === 'Plan'"
SHOWN = f"document.querySelectorAll('.point').length > 5 && {IDLE}"
SELECTED = "document.querySelector('.point[aria-checked=true]').getAttribute('aria-label')"
QUESTION = {"model": "qwen3-30b-a3b", "cluster": "cpu-4x10g", "workload": {"input": 512, "output": 128, "arrival": {"closed": "full"}}, "slo_tpot": "200ms", "objective": "tok/s"}


def open_plan(browser, server):
    fresh(browser, server, "plan")
    browser.wait("document.querySelector('#p-cluster')")


def put(browser, field, value):
    browser.js(f"""{{ const e = document.querySelector('#p-{field}'); e.value = {json.dumps(str(value))};
        for (const t of ['input', 'change']) e.dispatchEvent(new Event(t, {{bubbles: true}})); }}""")


def run(browser, model="qwen3-30b-a3b", cluster="cpu-4x10g"):
    put(browser, "model", model)
    put(browser, "cluster", cluster)
    browser.click(".plan-run button")
    browser.wait(SHOWN)


def test_a_form_becomes_a_picture_a_table_and_a_plan(chromium, served):
    page = chromium
    open_plan(page, served)
    run(page)
    want = httpx.post(served.url + "/plan", json=QUESTION, timeout=90).json()["result"]
    best = want["deployments"][0]
    listed = {(p["schedule"], p["workers"], p["tpot_ms"]) for c in want["curves"] for p in c["points"]} | {(p["schedule"], p["workers"], p["tpot_ms"]) for p in want["deployments"]}
    assert page.js("document.querySelectorAll('.point').length") >= len(listed)
    assert page.js(SELECTED).startswith(f"{best['schedule']}, {best['workers']}: ")
    assert f"{want['layouts']} deployments in" in page.js("document.querySelector('.plan-status').textContent")
    front = {(p["schedule"], p["workers"], p["tpot_ms"]) for p in want["front"]} | {(best["schedule"], best["workers"], best["tpot_ms"])}
    assert page.js("document.querySelectorAll('.plan-table tbody tr').length") == len(front)
    assert page.js("document.querySelectorAll('.plan-table tr.chosen').length") == 1
    page.click(".choice[data-list=points]")
    assert page.js("document.querySelectorAll('.plan-table tbody tr').length") == page.js("document.querySelectorAll('.point').length")
    for part in want["why"].split("; "):
        assert part.split(": ")[-1].lower() in page.js("document.querySelector('.plan-why').textContent").lower()
    # what is saved is the plan of the server
    page.js("""window.saved = new Promise((done) => { const make = URL.createObjectURL; URL.createObjectURL = (blob) => { blob.text().then(done); return make.call(URL, blob); }; });
        HTMLAnchorElement.prototype.click = function () { window.savedAs = this.download; }""")
    page.click(".plan-take .primary")
    assert json.loads(page.js("window.saved")) == best["plan"] and page.js("window.savedAs") == "plan.json"
    assert page.problems == []


def test_the_keyboard_goes_through_all_points(chromium, served):
    page = chromium
    open_plan(page, served)
    run(page)
    page.js("document.querySelector('.point[aria-checked=true]').focus()")
    first = page.js(SELECTED)
    page.key("Home")
    start = page.js(SELECTED)
    page.key("ArrowRight")
    second = page.js(SELECTED)
    assert len({first, start, second}) == 3 and start.split(",")[0] == second.split(",")[0] == first.split(",")[0]
    page.key("ArrowDown")
    other = page.js(SELECTED)
    assert other.split(",")[0] != first.split(",")[0]
    assert page.js("document.activeElement.getAttribute('aria-label')") == other
    assert page.js("document.querySelector('.plan-name h2').textContent").split()[0] == other.split(",")[0]
    page.key("ArrowUp")
    page.key("End")
    assert page.js(SELECTED).split(",")[0] == first.split(",")[0]
    page.js("document.querySelector('.plan-pick').focus()")  # the table chooses, too
    page.enter()
    page.wait("document.querySelector('.plan-pick').getAttribute('aria-pressed') === 'true'")
    assert page.js(SELECTED).startswith(page.js("document.querySelector('.plan-pick').textContent").split()[0])
    assert page.problems == []


def test_the_keyboard_stays_where_it_is_when_the_picture_is_drawn_again(chromium, served):
    page = chromium
    open_plan(page, served)
    run(page)
    page.js("document.querySelector('.point[aria-checked=true]').focus()")
    page.key("Home")
    box = page.js("document.querySelector('.pareto').getAttribute('viewBox')")
    at = page.js(SELECTED)
    page.size(1000, 800)
    page.wait(f"document.querySelector('.pareto').getAttribute('viewBox') !== {json.dumps(box)}")
    assert page.js("document.activeElement.getAttribute('aria-label')") == at
    page.key("ArrowRight")
    assert page.js(SELECTED) != at
    assert page.problems == []


def test_a_click_takes_the_nearest_point(chromium, served):
    page = chromium
    open_plan(page, served)
    run(page)
    page.js("document.querySelector('.pareto').scrollIntoView()")
    box = page.js("(() => { const b = document.querySelector('.point[aria-checked=false]').getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()")
    want = page.js("document.querySelector('.point[aria-checked=false]').getAttribute('aria-label')")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    page.wait("!document.querySelector('.pareto-tip').hidden")
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)
    page.wait(f"{SELECTED} === {json.dumps(want)}")


def test_a_bad_value_is_said_and_marked(chromium, served):
    page = chromium
    open_plan(page, served)
    put(page, "input", 0)
    page.click(".plan-run button")
    page.wait("!document.querySelector('.plan-error').hidden")
    assert "input: 0 is not from 1 to" in page.js("document.querySelector('.plan-error').textContent")
    assert page.js("document.activeElement.id") == "p-input" and page.js("document.activeElement.getAttribute('aria-invalid')") == "true"
    assert axe_faults(page) == []
    put(page, "input", 512)
    put(page, "tpot", "0.01")
    put(page, "model", "mixtral-8x7b")
    page.click(".plan-run button")
    page.wait("document.querySelector('.plan-error').textContent.includes('nearest change: --slo-tpot')")
    for kind in page.js("[...document.querySelectorAll('.plan-kinds input')].map((k) => k.value)"):
        page.click(f".plan-kinds [value={kind}]")
    page.click(".plan-run button")
    page.wait("document.querySelector('.plan-error').textContent.includes('only: must be an array')")
    # the browser notes the refusals itself; nothing else is wrong
    assert all("status of 4" in p for p in page.problems)


def test_machines_are_described(chromium, served):
    page = chromium
    open_plan(page, served)
    put(page, "cluster", "megascale-hetero")
    assert page.js("document.querySelector('#ph-cluster').textContent") == "4 × 8 H20, 450 GB/s within, 200 Gbit/s between; 4 × 8 L40S, 25 GB/s within, 100 Gbit/s between"
    put(page, "cluster", "cpu-4x10g")
    assert page.js("document.querySelector('#ph-cluster').textContent") == "4 × 1 EPYC, 10 Gbit/s between; no prices"
    put(page, "cluster", "described")
    assert page.js("document.querySelector('#p-device-0').value") and page.js("document.querySelector('#p-count-0').value")
    put(page, "device-0", "H20")
    page.click(".plan-described > .plain")
    put(page, "device-1", "L40S")
    put(page, "count-1", 2)
    assert axe_faults(page) == []
    put(page, "model", "dbrx")
    page.click(".plan-run button")
    page.wait(SHOWN)
    assert "dbrx on described" in page.js("document.querySelector('.plan-picture h2').textContent")
    assert any("H20" in w and "L40S" in w for w in page.js("[...document.querySelectorAll('.point')].map((p) => p.getAttribute('aria-label'))"))
    page.click("[aria-label='Remove nodes of kind 1']")
    assert page.js("document.querySelectorAll('.plan-group').length") == 1 and page.js("document.querySelector('#p-device-0').value") == "L40S"
    put(page, "per-0", 0)
    page.click(".plan-run button")
    page.wait("document.querySelector('.plan-error').textContent.includes('devices_per_node')")
    assert page.js("document.activeElement.id") == "p-per-0"


def planner_of(server):
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        for pid in map(int, (task / "children").read_text().split()):
            if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [b"plan"]:
                return pid
    return None


def test_a_run_is_cancelled(chromium, served):
    page = chromium
    open_plan(page, served)
    put(page, "model", "deepseek-v3")
    put(page, "cluster", "megascale-hetero")
    page.click(".plan-run button")
    end = time.monotonic() + 30
    while (pid := planner_of(served)) is None:
        assert time.monotonic() < end
    os.kill(pid, signal.SIGSTOP)  # however fast the machine is
    page.wait("document.querySelector('.plan-run button').textContent === 'Cancel' && document.querySelector('.plan-status').textContent.includes('Searching')")
    assert axe_faults(page) == []
    page.click(".plan-run button")
    page.wait(f"{IDLE} && document.querySelector('.plan-status').textContent === 'Cancelled.'")
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < end + 30
        time.sleep(0.01)
    run(page)
    assert page.problems == []


@pytest.mark.parametrize("width, scheme", [(1280, "light"), (1280, "dark"), (360, "light"), (390, "dark")])
def test_axe_finds_nothing_in_the_plan_view(chromium, served, width, scheme):
    page = chromium
    open_plan(page, served)
    page.size(width, 800)
    page.scheme(scheme)
    run(page, "dbrx", "h20-8-l40s-16")  # some of it is planned only
    assert axe_faults(page) == []
    assert page.js("document.querySelector('#plan').scrollWidth <= document.querySelector('#plan').clientWidth")
    page.click(".choice[data-list=points]")
    page.click(".plan-pick:has(.tag)")
    page.wait("document.querySelector('.plan-note')?.textContent.includes('does not run')")
    assert axe_faults(page) == []
    assert page.problems == []


def test_a_key_is_asked_for_and_the_view_comes(chromium, locked):
    page = chromium
    fresh(page, locked, "plan")
    page.wait("document.querySelector('#key-dialog').open")
    page.type("#api-key", API_KEY)
    page.click("#key-form [type=submit]")
    page.wait("document.querySelector('#p-cluster')")


def test_the_measured_machine_is_the_first_choice(chromium, tmp_path):
    stages = {k: {"fixed": 2, "floor": 5, "row": 1, "key": 0.01 if k == "attention" else 0} for k in ("attention", "router", "dense", "expert", "head")}
    link = {"transport": "shm", "peers": 1, "alpha": 30, "byte": 0.0005, "half_bytes": 0, "half_duplex": False}
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"version": 1, "model": "a-model", "machine": "a machine", "isa": "avx2", "cores": 4, "threads": 2, "random_weights": False, "memory_bytes": 8e9,
                                "seconds": 1, "stages": stages, "links": [link]}))
    server = Server(FIXTURE, "--threads", "1", "--profile", file)
    try:
        page = chromium
        open_plan(page, server)
        assert page.js("document.querySelector('#ph-cluster').textContent") == "a machine: 2 workers of 2 threads, measured with a-model"
        page.click(".plan-run button")
        page.wait("document.querySelector('.plan-error').textContent.includes('context of 512')")  # prompts of 512 are too long for this model
        assert page.js("document.activeElement.id") == "p-input"
        put(page, "input", 64)
        page.click(".plan-run button")
        page.wait(SHOWN)
        assert "from costs that were measured" in page.js("document.querySelector('.plan-picture').textContent")
        assert "is of model a-model" in page.js("document.querySelector('.plan-picture').textContent")  # what the planner notes
    finally:
        assert server.stop() == 0


def test_a_server_that_plans_nothing_says_so(chromium):
    server = Server(FIXTURE, "--threads", "1", "--no-planner")
    try:
        fresh(chromium, server, "plan")
        chromium.wait("document.querySelector('#plan').textContent.includes('plans nothing')")
    finally:
        assert server.stop() == 0
