"""What `sluice_moe.ray` does without Ray: what it refuses, what it reads of a plan, and the process that an actor watches."""

import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from package import MODEL, sluice_moe  # noqa: E402
from sluice_moe import _ray_plan, _ray_task  # noqa: E402
import sluice_moe.ray  # noqa: E402

SECRET = "a-secret-of-the-tests"
PLAN = {"version": 1, "schedule": "dep", "threads": 2, "workers": [{"roles": ["attention"], "device": "cuda:1"}, {"roles": ["expert"]},
                                                                   {"roles": ["expert"], "spare": True}]}


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)


def read(plan=None, resources=None, **options):
    return _ray_plan.read(sluice_moe.program(), str(MODEL), plan, resources or {}, options)


def test_without_ray_it_says_so():
    with pytest.raises(sluice_moe.SluiceError, match="Ray is not installed here .*pip install ray"):
        sluice_moe.ray.deploy(MODEL, attention=1, experts=1)


@pytest.mark.parametrize("options, why", [
    ({"placed_within": 0}, "placed_within: 0: more than 0 and at most 86400"), ({"name": "a b"}, "name: 'a b'"),
    ({"api_key": "a", "api_key_file": "b"}, "api_key: is said twice"), ({"cacert": "c"}, "cacert: the server has no certificate")])
def test_what_is_wrong_is_said_before_anything_else(options, why):
    with pytest.raises(ValueError, match=why):
        sluice_moe.ray.deploy(MODEL, **options)


@pytest.mark.parametrize("options, why", [
    ({"nonsense": 1}, "nonsense: is no option"), ({"device": "cuda:0"}, "device: is no option here: the plan's workers say it"),
    ({"secret_file": "x"}, "secret_file: is no option here: each deployment makes its own"), ({"port": 65536}, "port: 65536 is not a whole number from 0 to 65535"),
    ({"plan": "nowhere.json"}, "plan: nowhere.json"), ({"tls_cert": "x"}, "tls_cert: tls_key is missing"), ({"tls_key": "x"}, "tls_key: tls_cert is missing"),
    ({"resources": {"helper": {}}}, "resources: 'helper' is none of"),
    ({"resources": {"1": {}}}, "no worker from 0 to 0"), ({"resources": {"both": {"CPU": -1}}}, "resources: both: CPU: -1 is no amount"),
    ({"resources": {"both": 2}}, "resources: both: 2 has no names")])
def test_options_and_resources_are_checked(options, why):
    with pytest.raises(ValueError, match=why):
        read(**options)


def test_the_program_says_what_is_wrong_with_a_plan_or_an_option():
    for options, why in (({"plan": {**PLAN, "workers": []}}, "plan: .*workers"), ({"plan": {**PLAN, "speed": 1}}, "plan: .*speed"),
                         ({"attention": 20000}, "--attention: .*16384")):
        with pytest.raises(sluice_moe.SluiceError, match=why):
            read(**options)


def test_places_take_what_the_plan_says():
    given = read(PLAN, {"expert": {"fast_disk": 1}, "2": {"CPU": 0.5}, "coordinator": {"CPU": 0}})
    attention, expert, spare = given.places
    assert attention.needs["CPU"] == 2 and attention.needs["GPU"] == 1 and attention.needs["memory"] > expert.needs["memory"] > 512e6
    assert "GPU" not in expert.needs and expert.needs["fast_disk"] == 1 and not expert.spare
    assert spare.needs["CPU"] == 0.5 and spare.needs["fast_disk"] == 1 and spare.spare
    assert given.coordinator == {"CPU": 0, "memory": 1e9}
    variables = read(attention=1, experts=1, api_key_file="keys", wire="bf16", exact=True).variables
    assert variables == {"SLUICE_API_KEY_FILE": str(pathlib.Path("keys").resolve()), "SLUICE_WIRE": "bf16", "SLUICE_EXACT": "1"}
    assert '"cuda:0"' in given.plan and "cuda:1" not in given.plan  # Ray shows a worker its own GPU alone
    assert [p.role for p in read(attention=1, experts=1, max_experts=2, threads=3).places] == ["attention", "expert", "expert"]


def test_pauses_grow_up_to_a_limit():
    assert [_ray_task.pause(n) for n in range(1, 8)] == [0, 1, 2, 4, 8, 10, 10]


def script(folder, text):
    made = folder / "program"
    made.write_text(f"#!/bin/sh\n{text}")
    made.chmod(0o700)
    return str(made)


def run(task, program, words=("task",), variables=None, files=None):
    return task.run(program, list(words), SECRET, variables or {}, files or {})


def test_who_is_killed_is_started_again_and_reads_the_secret_each_time(tmp_path):
    program = script(tmp_path, f"""cat >>{tmp_path}/in; tr '\\0' ' ' </proc/$$/cmdline >>{tmp_path}/words; cat /proc/$$/environ >>{tmp_path}/env
[ $(wc -l <{tmp_path}/in) = 3 ] && cat "$SLUICE_ADMIN_KEY_FILE" && stat -Lc %a "$SLUICE_ADMIN_KEY_FILE" && exit 3
kill -9 $$""")
    task = _ray_task.Task("worker 0", True)
    status, log = run(task, program, variables={"SLUICE_WIRE": "f32"}, files={"admin_key_file": "a-key\n", "plan": "{}"})
    assert status == 3 and log[-2:] == ["a-key", "600"]
    assert [line for line in log if "ended with 137" in line][1].endswith("the next one in 1 s")
    assert (tmp_path / "in").read_text() == f"{SECRET}\n" * 3
    words, env = (tmp_path / "words").read_text(), (tmp_path / "env").read_bytes()
    assert "--secret-file -" in words and "--plan /proc/self/fd/" in words and b"SLUICE_WIRE=f32" in env
    for text in (words.encode(), env):
        assert SECRET.encode() not in text and b"a-key" not in text


def test_a_worker_that_ends_well_goes_on_and_a_coordinator_does_not(tmp_path):
    program = script(tmp_path, f"echo x >>{tmp_path}/n; [ $(wc -l <{tmp_path}/n) = 2 ] && exit 2; exit 0")
    assert run(_ray_task.Task("coordinator", False), program)[0] == 0
    assert run(_ray_task.Task("worker 0", True), program)[0] == 2


def test_it_ends_when_told_also_between_two_starts(tmp_path):
    for text, statuses in (("trap 'exit 0' TERM; while :; do sleep 0.05; done", {0}), ("kill -9 $$", {0, -signal.SIGKILL, -signal.SIGTERM})):
        task, later = _ray_task.Task("worker 0", True), []
        program = script(tmp_path, text)
        thread = threading.Thread(target=lambda: later.append(run(task, program)))
        thread.start()
        time.sleep(2.5)
        task.stop()
        thread.join(20)
        assert len(later) == 1 and later[0][0] in statuses


def test_a_machine_without_the_program_says_so():
    status, log = run(_ray_task.Task("worker 1 (expert)", True), "/nowhere/sluice")
    assert status == 127 and log == ["/nowhere/sluice: is not on the machine where Ray has placed worker 1 (expert)"]


def test_the_process_dies_with_its_actor(tmp_path):
    program = script(tmp_path, f"echo $$ >{tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 60")
    code = f"import sys; sys.path[:0] = {sys.path!r}\nfrom sluice_moe import _ray_task\n_ray_task.Task('w', True).run({program!r}, [], 's', {{}}, {{}})"
    actor = subprocess.Popen([sys.executable, "-c", code])
    until = time.monotonic() + 30
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < until and actor.poll() is None
        time.sleep(0.02)
    child = pathlib.Path("/proc", (tmp_path / "pid").read_text().strip())
    assert child.exists()
    actor.kill()
    actor.wait(30)
    while child.exists() and "Z" not in (child / "stat").read_text().split(")")[1].split()[0]:
        assert time.monotonic() < until
        time.sleep(0.02)
