"""`sluice_moe.ray` on a Ray that these tests start for themselves: three raylets, as three machines, on this one."""

import json
import os
import pathlib
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import uuid

import pytest

ray = pytest.importorskip("ray", reason="ray is not installed here: tests/launchers/run.py makes an environment with it")

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "wheel")]
import ended  # noqa: E402
from certificates import certificate  # noqa: E402
import launched  # noqa: E402
import served  # noqa: E402
from package import CASES, MODEL, sluice_moe  # noqa: E402
import sluice_moe.ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

PROMPT = CASES[0]["prompt_ids"]
SLOW_S = 180  # a machine that does other things, too
CPUS = 6  # of all machines
PLAN = {"version": 1, "schedule": "dep", "threads": 1, "exact": True,
        "workers": [{"roles": ["attention"]}, {"roles": ["expert"]}, {"roles": ["expert"]}, {"roles": ["expert"], "spare": True}]}
WITHIN = {"placed_within": SLOW_S, "ready_within": SLOW_S}
PACKAGE = str(pathlib.Path(sluice_moe.__file__).resolve().parents[1])


class Machines:
    """A head, where the tests and coordinators are, and two more."""

    def __init__(self, folder):
        self.folder = folder
        mark = uuid.uuid4().hex
        self.of = f"SLUICE_TESTS_OF={mark}"  # what Ray starts has it from here
        (folder / "ray").mkdir()
        os.environ.update({"SLUICE_TESTS_OF": mark, "PYTHONPATH": PACKAGE, "RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"})
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        self.others = [self.cluster.add_node(num_cpus=2) for _ in range(2)]
        ray.init(address=self.cluster.address, log_to_driver=False)

    def tasks(self):
        """Tasks, coordinators and workers."""
        return [pid for words in (["task", str(MODEL)], ["serve", str(MODEL), "--remote"], ["--model", str(MODEL)])
                for pid in launched.processes(*words, of=self.of)]

    def worker(self, i):
        return launched.one("--worker-id", str(i), "--fabric-host", of=self.of)

    def all_is_given_back(self):
        launched.wait("no task left", SLOW_S, lambda: not self.tasks())
        launched.wait("all CPUs free", SLOW_S, lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])


@pytest.fixture(scope="module")
def machines():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="r"))  # sockets lie in it, whose paths are short
    made = Machines(folder)
    yield made
    ray.shutdown()
    made.cluster.shutdown()
    launched.wait("no process left", SLOW_S, lambda: not [p for p in launched.processes(of=made.of) if p != os.getpid()])
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def nothing_is_left(request):
    yield
    if "machines" in request.fixturenames:
        request.getfixturevalue("machines").all_is_given_back()


def alone(n):
    """Tokens of one process without a deployment."""
    done = subprocess.run([served.SLUICE, "run", MODEL, "--ids", ",".join(map(str, PROMPT)), "-n", str(n), "--exact", "--temp", "0", "--ignore-eos",
                           "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)["ids"]


def ids(client, n, *, meanwhile=None, choices=1):
    """Of each choice; `meanwhile` is called in the middle of the stream."""
    found = [[] for _ in range(choices)]
    with client.stream_complete(PROMPT, max_tokens=n, temperature=0, extra={"return_token_ids": True, "ignore_eos": True, "n": choices}) as stream:
        for piece in stream:
            found[piece.index] += piece.token_ids or ()
            if meanwhile and len(found[0]) >= 8:
                assert min(map(len, found)) < n
                meanwhile()
                meanwhile = None
    return found


def lost(client):
    return sum(s.value for s in client.metrics() if s.name == "sluice:workers_lost_total")


def all_serve(client, n=3):
    return client.health().status == "ok" and sum(w.state == "serving" for w in client.workers()) == n


def secrets_of(deployment):
    return [deployment._secret, deployment._admin_key]


def places_of(secret, machines):
    """Where it can be read: command lines, environments, files of Ray."""
    found = []
    for pid in launched.processes(of=machines.of):
        for name in ("cmdline", "environ"):
            try:
                if secret.encode() in pathlib.Path(f"/proc/{pid}/{name}").read_bytes():
                    found.append(f"{pid} {name}")
            except OSError:
                pass
    return found + [p for p in machines.folder.rglob("*") if p.is_file() and secret.encode() in p.read_bytes()]


@pytest.fixture
def deployment(machines):
    with sluice_moe.ray.deploy(MODEL, PLAN, **WITHIN) as made:
        yield made


def test_tokens_are_those_of_one_process_and_secrets_are_nowhere(machines, deployment):
    client = deployment.client()
    assert ids(client, 200) == [alone(200)]
    assert len({deployment.look(i)["node"] for i in range(3)}) > 1  # they are spread
    assert deployment.look()["node"] == ray.get_runtime_context().get_node_id()
    assert any("listening on " + deployment.url in line for line in deployment.log())
    for secret in secrets_of(deployment):
        assert places_of(secret, machines) == []
    assert places_of(deployment.url, machines), "the look at logs sees nothing"


def test_who_is_killed_comes_back_and_streams_go_on(machines, deployment):
    client, said = deployment.client(), alone(300)
    assert ids(client, 300, choices=4) == [said] * 4
    # A worker's process: its task starts the next one.
    victim = machines.worker(1)
    assert ids(client, 300, choices=4, meanwhile=lambda: launched.kill(victim)) == [said] * 4
    launched.wait("another worker 1", SLOW_S, lambda: machines.worker(1) != victim)
    launched.wait("all well", SLOW_S, lambda: all_serve(client))
    assert lost(client) == 1 and deployment.look(1)["starts"] == 1
    # Its task: its actor does.
    victim = deployment.look(2)["pid"]
    assert ids(client, 300, choices=4, meanwhile=lambda: launched.kill(victim)) == [said] * 4
    launched.wait("the next task", SLOW_S, lambda: deployment.look(2)["starts"] == 2)
    launched.wait("all well", SLOW_S, lambda: all_serve(client))
    assert lost(client) == 2 and "ended with 137" in "\n".join(deployment.log(2))
    # Its actor: Ray does, and nothing of the old one is left.
    before, process = deployment.look(0), machines.worker(0)
    assert ids(client, 300, choices=4, meanwhile=lambda: launched.kill(before["actor_pid"])) == [said] * 4
    launched.wait("the next worker 0", SLOW_S, lambda: machines.worker(0) != process)
    launched.wait("all well", SLOW_S, lambda: all_serve(client))
    after = deployment.look(0)
    assert after["actor_pid"] != before["actor_pid"] and lost(client) == 3


def test_the_coordinator_comes_back_where_it_was(machines, deployment):
    client, said = deployment.client(), alone(24)
    for victim in (launched.one("serve", str(MODEL), "--remote", of=machines.of), deployment.look()["actor_pid"]):
        launched.kill(victim)
        launched.wait("it is gone", SLOW_S, lambda: not pathlib.Path(f"/proc/{victim}").exists())
        launched.wait("all well", SLOW_S, lambda: answers(client) and all_serve(client))
        assert ids(client, 24) == [said]


def answers(client):
    try:
        return client.health().serving
    except sluice_moe.ConnectError:
        return False


def test_places_are_left_and_taken(machines, deployment):
    client, said = deployment.client(), alone(200)
    cpus = ray.available_resources()["CPU"]
    assert ids(client, 200, choices=4, meanwhile=lambda: deployment.drain(2, within=SLOW_S)) == [said] * 4
    launched.wait("its CPU", SLOW_S, lambda: ray.available_resources()["CPU"] == cpus + 1)
    assert client.workers()[2].state == "drained"
    with pytest.raises(ValueError, match="2: has no actor"):
        deployment.look(2)
    assert ids(client, 200, choices=4, meanwhile=lambda: deployment.join(2, within=SLOW_S)) == [said] * 4
    deployment.scale(3, within=SLOW_S)  # into the free place
    assert [w.state for w in client.workers()] == ["serving"] * 4
    deployment.scale(1, within=SLOW_S)
    assert [w.state for w in client.workers()] == ["serving", "serving", "drained", "drained"] and ids(client, 200) == [said]
    with pytest.raises(sluice_moe.RefusedError) as refused:
        deployment.drain(1)
    assert refused.value.code == "last_worker"
    for call, why in ((lambda: deployment.join(4), "worker: 4: the plan has places 0 to 3"), (lambda: deployment.scale(4), "1 to 3 places"),
                      (lambda: deployment.scale(1, "both"), "role: 'both': the plan has attention, expert")):
        with pytest.raises(ValueError, match=why):
            call()


def test_https(machines, tmp_path):
    cert, key = certificate(tmp_path / "used")
    options = {"tls_cert": str(cert), "tls_key": str(key), **WITHIN}
    with sluice_moe.ray.deploy(MODEL, PLAN, cacert=cert, **options) as made:
        assert made.url.startswith("https://127.0.0.1:") and ids(made.client(), 24) == [alone(24)]
        made.drain(2, within=SLOW_S)
        made.join(2, within=SLOW_S)
        new = certificate(tmp_path / "new")
        for old, path in zip((cert, key), new):
            path.replace(old)  # nobody is told
        port = int(made.url.rpartition(":")[2])
        launched.wait("the new certificate", SLOW_S, lambda: ssl.get_server_certificate(("127.0.0.1", port)) == cert.read_text())
        launched.kill(launched.one("serve", str(MODEL), "--remote", of=machines.of))
        launched.wait("all well", SLOW_S, lambda: answers(made.client()) and all_serve(made.client()))
        assert ids(made.client(), 24) == [alone(24)]
        assert places_of("PRIVATE KEY", machines) == []
    with pytest.raises(sluice_moe.ServerError, match="its certificate is refused"):
        sluice_moe.ray.deploy(MODEL, PLAN, **options)


def test_who_finds_no_place_says_what_lacks(machines):
    def refused(plan=None, within=3.0, **options):
        with pytest.raises(sluice_moe.ServerError) as error:
            sluice_moe.ray.deploy(MODEL, plan, placed_within=within, **options)
        return str(error.value)

    assert "worker 1 (expert): has no place within 3 s: CPU: 64 wanted, the largest machine has 2" in refused(attention=1, experts=1, threads=64)
    gpus = {**PLAN, "workers": [{"roles": ["attention"]}, {"roles": ["expert"], "device": "cuda:3"}]}
    assert "worker 1 (expert): has no place within 3 s: GPU: 1 wanted, the largest machine has 0" in refused(gpus)
    assert "fast_disk: 1 wanted, this machine has 0" in refused(PLAN, resources={"coordinator": {"fast_disk": 1}})
    assert "CPU: 1 wanted, 0 free" in refused(within=30.0, attention=1, experts=2 * CPUS)


def test_a_place_that_ray_has_not_is_wanted_no_longer(machines):
    with sluice_moe.ray.deploy(MODEL, PLAN, resources={"3": {"fast_disk": 1}}, **WITHIN) as made:
        made._placed_within = 2.0
        with pytest.raises(sluice_moe.ServerError, match="worker 3 .*fast_disk: 1 wanted"):
            made.join(3)
        launched.wait("all well", SLOW_S, lambda: all_serve(made.client()) and made.client().workers()[3].state in ("free", "drained"))
        assert ids(made.client(), 24) == [alone(24)]


def test_a_task_that_cannot_work_is_the_deployments_end(machines):
    with pytest.raises(sluice_moe.ServerError) as error:
        sluice_moe.ray.deploy(MODEL, PLAN, max_num_seqs=100000, **WITHIN)
    assert "ended with 2" in str(error.value) and "SLUICE_MAX_NUM_SEQS: '100000' is not" in str(error.value)
    missing = {k: v for k, v in PLAN.items() if k != "workers"}
    with pytest.raises(sluice_moe.SluiceError, match="plan: workers: missing"):
        sluice_moe.ray.deploy(MODEL, missing)


def test_a_worker_of_a_machine_that_dies_goes_elsewhere(machines):
    here = ray.get_runtime_context().get_node_id()
    with sluice_moe.ray.deploy(MODEL, PLAN, **WITHIN) as made:
        client, said = made.client(), alone(300)
        away = {n.node_id: n for n in machines.others}
        node = next(made.look(i)["node"] for i in (1, 2) if made.look(i)["node"] != here)
        assert ids(client, 300, choices=4, meanwhile=lambda: machines.cluster.remove_node(away[node], allow_graceful=False)) == [said] * 4
        machines.others.remove(away[node])
        launched.wait("all elsewhere", SLOW_S, lambda: all(made.look(i, within=SLOW_S)["node"] != node for i in range(3)))
        launched.wait("all well", SLOW_S, lambda: lost(client) >= 1 and all_serve(client))
        assert ids(client, 24) == [said[:24]]
        machines.others.append(machines.cluster.add_node(num_cpus=2))


def test_the_command_follows_what_others_ask_and_ends_when_it_has_answered(machines, tmp_path):
    key = tmp_path / "admin.key"
    subprocess.run([served.SLUICE, "secret", "--out", key], check=True, capture_output=True)
    port, later = launched.free_port(), []
    command = [sys.executable, "-m", "sluice_moe.ray", MODEL, "--attention", "1", "--experts", "2", "--max-experts", "3", "--exact", "--port", str(port),
               "--admin-key-file", key, "--address", machines.cluster.address, "--placed-within", str(SLOW_S), "--show-log"]
    with ended.scope(), open(tmp_path / "log", "w") as log:
        process = ended.start(command, stdout=log, stderr=log)
        asked = launched.Asked(port)
        try:
            launched.wait("an answer", SLOW_S, asked.is_ready)
        except AssertionError as e:
            raise AssertionError((tmp_path / "log").read_text()) from e
        cpus = ray.available_resources()["CPU"]

        def sluice(verb, worker):
            subprocess.run([served.SLUICE, verb, str(worker), "--url", asked.url, "--admin-key-file", key, "--timeout", str(SLOW_S)], check=True,
                           capture_output=True)

        sluice("drain", 2)
        launched.wait("its CPU", SLOW_S, lambda: ray.available_resources()["CPU"] == cpus + 1)
        sluice("join", 3)
        launched.wait("three that serve", SLOW_S, lambda: asked.workers_that_serve() == 3)
        launched.wait("its CPU", SLOW_S, lambda: ray.available_resources()["CPU"] == cpus)
        launched.wait("none that runs", SLOW_S, lambda: asked.running() == 0)
        asking = threading.Thread(target=lambda: later.append(asked.answer(400, SLOW_S, 64)))
        asking.start()
        launched.wait("a request", SLOW_S, lambda: asked.running() > 0)
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
        asking.join(SLOW_S)
        assert later and len(later[0]) == 400
        assert process.wait(SLOW_S) == 0, (tmp_path / "log").read_text()
        assert f"listening on http://127.0.0.1:{port}" in (tmp_path / "log").read_text()
