"""POST /plan: deployments that the server's own planner plans for clients, one at a time, beside what it serves."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import httpx
import pytest
from conftest import BINARY, KEY, start

SLOW = {"model": "deepseek-v3", "cluster": "megascale-hetero"}  # about a second of CPU time
PLAN_TIMEOUT = 300  # a busy machine has little for who plans at low priority
HERE = {"name": "this-machine", "devices": {"core": {"memory": "4GB", "bandwidth": "10GB/s", "f32": "50GFLOPS", "launch": "5us"}},
        "nodes": [{"device": "core", "devices_per_node": 2, "count": 1, "intra": {"bandwidth": "2GB/s", "latency": "20us"}}]}


@pytest.fixture(scope="module")
def planning(tmp_path_factory):
    """A server that may plan; SLUICE_SERVE_ARGS do not matter here."""
    running = start(tmp_path_factory, "qwen3moe-tiny", ["--threads", "1", "--plan-timeout", str(PLAN_TIMEOUT)])
    yield running
    running.stop()


def plan(server, body, **options):
    return httpx.post(server.url + "/plan", json=body, timeout=PLAN_TIMEOUT + 30, **options)


def error(server, body, status=400):
    answer = plan(server, body)
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


def planner_of(server):
    """Process that plans for the server, or None."""
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for pid in map(int, (task / "children").read_text().split()):
                if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [b"plan"]:
                    return pid
    return None


def until(what, seconds=30):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return found


@contextlib.contextmanager
def stopped_planner(server, client):
    """A planning that stands still for as long as it lasts; `client` asks for it on a thread of its own."""
    for _ in range(5):  # one that was through before it could be stopped does not count
        asked = threading.Thread(target=client)
        asked.start()
        pid = until(lambda: planner_of(server) or not asked.is_alive())
        if pid is not True:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                break
        asked.join()
    else:
        pytest.fail("the planner is never seen")
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        asked.join()


def test_the_answer_is_the_command_lines(planning):
    answer = plan(planning, {"model": "qwen3-30b-a3b", "cluster": "cpu-4x10g", "slo_tpot": "300ms", "top": 2, "only": ["ep", "findep"], "objective": "tok/s/device"})
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    line = [BINARY, "plan", "qwen3-30b-a3b", "--cluster", "cpu-4x10g", "--slo-tpot", "300ms", "--top", "2", "--only", "ep,findep", "--objective", "tok/s/device", "--json", "--plans"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    assert answer.json()["result"] == json.loads(subprocess.run(line, capture_output=True, check=True, env=clean).stdout)
    assert {c["schedule"] for c in answer.json()["result"]["curves"]} == {"ep", "findep"}


def test_options_are_what_may_be_asked_for(planning):
    offer = planning.get("/plan/options").json()
    assert offer["model"] == planning.model and "deepseek-v3" in offer["models"] and "chat" in offer["workloads"]
    assert offer["measured"] is None and offer["limits"] == {"devices": 1024, "seconds": PLAN_TIMEOUT}
    groups = {c["name"]: c["nodes"] for c in offer["clusters"]}
    assert groups["cpu-4x10g"][0]["count"] == 4 and groups["cpu-4x10g"][0]["inter"][0] == pytest.approx(10)
    assert sorted(offer["schedules"]) == sorted(["ep", "eps", "hybrid", "pipeline", "dep", "pingpong", "findep", "aep"])
    assert planning.get("/plan/running").json() == {"running": False, "done": 0, "total": 0}


def test_a_plan_of_the_served_model_is_served(planning, make_server, tmp_path):
    found = plan(planning, {"cluster": HERE, "runnable": True, "workload": {"input": 100, "output": 50, "arrival": {"closed": "full"}}}).json()["result"]
    assert found["cluster"] == "this-machine"
    file = tmp_path / "plan.json"
    best = next(d for d in found["deployments"] if d["schedule"] == "pingpong")
    file.write_text(json.dumps(best["plan"]))
    server = make_server("qwen3moe-tiny", "--plan", file)
    assert server.client().completions.create(model=server.model, prompt=[3, 17, 41], max_tokens=4).usage.completion_tokens == 4


def test_what_is_planned_only_has_no_plan(planning):
    found = plan(planning, {"model": "dbrx", "cluster": "h20-8-l40s-16"}).json()["result"]
    kinds = {bool(d["planned_only"]): d["plan"] for d in found["deployments"]}
    assert kinds[True] is None and kinds[False]["version"] == 1


def test_plans_guess(planning):
    """By the block on CPUs alone."""
    asked = {"model": "glm-4.5-air", "speculate": "both", "only": ["ep"]}
    cpus = HERE | {"devices": {"core": HERE["devices"]["core"] | {"memory": "400GB", "cpu": True}}}
    for cluster, why, said in ((cpus, False, "both"), ("h200-8", "the block that guesses on GPUs", None)):
        found = plan(planning, asked | {"cluster": cluster}).json()["result"]["deployments"][0]
        assert found["planned_only"] == why and (found["plan"] or {}).get("speculate") == said


def test_names_are_whatever_they_are(planning):
    body = {"cluster": HERE | {"name": 'a "rack" \\ é', "devices": {'c"o\\re é': HERE["devices"]["core"]}, "nodes": [HERE["nodes"][0] | {"device": 'c"o\\re é'}]},
            "workload": {"input": 100, "output": 50}}
    found = plan(planning, body).json()["result"]
    assert found["cluster"] == 'a "rack" \\ é' and found["deployments"][0]["attention"]["device"] == 'c"o\\re é'
    assert 'c"o\\re é' in found["deployments"][0]["workers"]
    assert "name: 64 bytes, allowed: 1 to 63" in error(planning, {"cluster": HERE | {"name": "é" * 32}})["message"]


@pytest.mark.parametrize("body, param, words", [
    ({"cluster": "nowhere"}, "cluster", '"nowhere" is no preset'),
    ({}, "cluster", "missing"),
    ({"cluster": 7}, "cluster", "must be the name"),
    ({"cluster": HERE | {"nodes": [HERE["nodes"][0] | {"count": 0}]}}, "cluster", "count: 0 is not from 1"),
    ({"cluster": HERE | {"nodes": [HERE["nodes"][0] | {"devices_per_node": 64, "count": 64, "inter": {"bandwidth": "1GB/s", "latency": "1us"}}]}}, "cluster", "4096 devices, limit 1024"),
    ({"cluster": "h100-8", "model": "/etc/passwd"}, "model", "neither served"),
    ({"cluster": "h100-8", "workload": {"input": 0, "output": 1}}, "workload", "input: 0 is not from 1"),
    ({"cluster": "h100-8", "workload": {"input": 1, "output": 1, "trace": "/etc/passwd"}}, "workload", "trace"),
    ({"cluster": "h100-8", "workload": "/etc/passwd"}, "workload", "no preset"),
    ({"cluster": "h100-8", "slo_tpot": "fast"}, "slo_tpot", "slo_tpot: \"fast\" is not a time"),
    ({"cluster": "h100-8", "top": 17}, "top", "from 1 to 16"),
    ({"cluster": "h100-8", "reserve": 0.95}, "reserve", "from 0 to 0.9"),
    ({"cluster": "h100-8", "only": ["ep", "quick"]}, "only", "'quick' is none of"),
    ({"cluster": "h100-8", "only": "ep"}, "only", "must be an array"),
    ({"cluster": "h100-8", "speculate": "often"}, "speculate", "'often' is unknown: off, lookup, always, mtp"),
    ({"cluster": "h100-8", "context": "x" * 65}, "context", "1 to 64 characters"),
    ({"cluster": "h100-8", "runnable": 1}, "runnable", "true or false"),
    ({"cluster": "h100-8", "measured": True}, "measured", "--profile"),
    ({"cluster": "h100-8", "strategies": True}, "strategies", "unknown field"),
    ({"cluster": "h100-8", "objective": "tok/s/$", "model": "dbrx", "output": "/tmp/x"}, "output", "unknown field"),
])
def test_bad_values_are_named(planning, body, param, words):
    found = error(planning, body)
    assert found["param"] == param and words in found["message"], found


def test_bodies_are_bounded(planning):
    assert "limit 32768" in error(planning, {"cluster": "x" * 40000})["message"]
    raw = httpx.post(planning.url + "/plan", content=b'{"cluster":', timeout=30)
    assert raw.status_code == 400 and httpx.post(planning.url + "/plan", content=b"[1]").status_code == 400


def test_what_cannot_be_names_the_nearest_change(planning):
    found = error(planning, {"model": "mixtral-8x7b", "cluster": "cpu-4x10g", "slo_tpot": "1ms"}, 422)
    assert found["code"] == "infeasible" and "--slo-tpot" in found["message"]


def test_one_at_a_time_at_low_priority_beside_what_is_served(planning):
    answers = []
    with stopped_planner(planning, lambda: answers.append(plan(planning, SLOW))) as pid:
        until(lambda: os.getpriority(os.PRIO_PROCESS, pid) >= 10)
        assert planning.get("/plan/running").json()["running"]
        busy = plan(planning, SLOW)
        assert busy.status_code == 503 and busy.json()["error"]["code"] == "planner_busy" and busy.headers["retry-after"] == "1"
        assert planning.client().completions.create(model=planning.model, prompt=[3, 17], max_tokens=4).usage.completion_tokens == 4
        assert not [v for v in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if v.startswith(b"SLUICE_")]
        files = {os.readlink(f).split(":")[0] for f in pathlib.Path(f"/proc/{pid}/fd").iterdir()}
        assert "socket" not in files
    assert answers[-1].status_code == 200 and not planning.get("/plan/running").json()["running"]


def test_a_client_that_leaves_ends_it(planning):
    def leaves():
        with contextlib.suppress(httpx.ReadTimeout):
            httpx.post(planning.url + "/plan", json=SLOW, timeout=1)

    with stopped_planner(planning, leaves) as pid:
        until(lambda: not os.path.exists(f"/proc/{pid}"))
    until(lambda: not planning.get("/plan/running").json()["running"])
    assert plan(planning, {"model": "mixtral-8x7b", "cluster": "h100-8"}).status_code == 200


def test_it_may_take_so_long(make_server):
    server = make_server("qwen3moe-tiny", "--threads", "1", "--plan-timeout", "1")
    answers = []
    with stopped_planner(server, lambda: answers.append(plan(server, SLOW))) as pid:
        until(lambda: not os.path.exists(f"/proc/{pid}"))
        until(lambda: answers)
    assert answers[-1].status_code == 503 and answers[-1].json()["error"]["code"] == "planning_took_too_long"


def test_the_server_does_not_wait_for_it(make_server):
    server = make_server("qwen3moe-tiny", "--threads", "1")

    def asks():
        with contextlib.suppress(httpx.HTTPError):
            plan(server, SLOW)

    with stopped_planner(server, asks) as pid:
        server.stop()
        assert not os.path.exists(f"/proc/{pid}")


def test_it_takes_the_key(locked_server):
    for ask in (lambda **o: plan(locked_server, {"cluster": "h100-8", "model": "mixtral-8x7b"}, **o), lambda **o: locked_server.get("/plan/options", **o),
                lambda **o: locked_server.get("/plan/running", **o)):
        assert ask().status_code == 401
        assert ask(headers={"Authorization": f"Bearer {KEY}"}).status_code == 200


def test_other_sites_plan_nothing(planning):
    assert plan(planning, SLOW, headers={"Origin": "http://elsewhere.example"}).status_code == 403


def test_a_server_may_plan_nothing(make_server):
    server = make_server("qwen3moe-tiny", "--threads", "1", "--no-planner")
    assert error(server, SLOW, 404)["code"] == "no_planner"
    assert server.get("/plan/options").status_code == 404


def test_measured_costs_of_the_servers_profile(make_server, tmp_path):
    stages = {k: {"fixed": 2, "floor": 5, "row": 1, "key": 0.01 if k == "attention" else 0} for k in ("attention", "router", "dense", "expert", "head")}
    link = {"transport": "shm", "peers": 1, "alpha": 30, "byte": 0.0005, "half_bytes": 0, "half_duplex": False}
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"version": 1, "model": "qwen3moe-tiny", "machine": "a machine", "isa": "avx2", "cores": 4, "threads": 2, "random_weights": False,
                                "memory_bytes": 8e9, "seconds": 1, "stages": stages, "links": [link]}))
    server = make_server("qwen3moe-tiny", "--threads", "1", "--profile", file)
    measured = server.get("/plan/options").json()["measured"]
    assert measured["machine"] == "a machine" and measured["cluster"]["nodes"][0]["devices_per_node"] == 2
    answer = plan(server, {"measured": True, "workload": {"input": 64, "output": 32, "arrival": {"closed": "full"}}}).json()
    found = answer["result"]
    other = plan(server, {"model": "mixtral-8x7b", "cluster": "h100-8", "measured": True}).json()["notes"]
    assert answer["notes"] == [] and other == ["the profile is of model qwen3moe-tiny, not mixtral-8x7b"]
    assert found["estimated"] is False and found["devices"] == 2
    same = plan(server, {"measured": True, "cluster": measured["cluster"], "workload": {"input": 64, "output": 32, "arrival": {"closed": "full"}}}).json()["result"]
    assert same == found
