"""`sluice task` under Open MPI's mpirun: rank 0 is the coordinator, the others are workers."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import ended  # noqa: E402
import launched  # noqa: E402
import served  # noqa: E402

SLUICE = served.SLUICE
MODEL = served.ROOT / "tests" / "golden" / "mixtral-tiny"
SLOW_S = 120  # a machine that does other things, too
LONG = 64  # answers at once: a second at least, where one takes less than a look does

pytestmark = pytest.mark.skipif(not shutil.which("mpirun"), reason="mpirun: apt-get install openmpi-bin")


class Job:
    def __init__(self, folder, *options):
        secret, port = folder / "secret", launched.free_port()
        subprocess.run([SLUICE, "secret", "--out", secret], check=True, capture_output=True)
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        command = ["mpirun", *root, "--oversubscribe", "-np", "4", SLUICE, "task", MODEL, "--attention", "1", "--experts", "2", "--threads", "1",
                   "--secret-file", secret, "--fabric-port", str(launched.free_port()), *options]
        self.of, self.log, self.asked = f"SLUICE_PORT={port}", folder / "log", launched.Asked(port)
        with open(self.log, "w") as log:
            self.mpirun = ended.start(command, stdout=log, stderr=log, env={**os.environ, "SLUICE_PORT": str(port), "SLUICE_EXACT": "1"})
        try:
            launched.wait("an answer", SLOW_S, self.asked.is_ready)
        except AssertionError as e:
            raise AssertionError(self.log.read_text()) from e

    def worker(self, i):
        return launched.one("--worker-id", str(i), "--fabric-host", of=self.of)

    def nothing_is_left(self):
        launched.wait("nothing left", SLOW_S, lambda: not launched.processes(str(SLUICE), of=self.of))


@pytest.fixture
def job(tmp_path):
    with ended.scope():
        yield Job(tmp_path)


def test_a_job_outlives_a_worker_and_ends_when_it_has_answered(job):
    said, later = job.asked.answer(), []
    assert len(said) == 24
    victim = job.worker(2)
    launched.kill(victim)
    assert job.asked.answer() == said
    launched.wait("another worker 2", SLOW_S, lambda: job.worker(2) != victim)
    launched.wait("all well", SLOW_S, job.asked.is_ready)
    assert job.asked.answer() == said and "worker 2 ended with 137" in job.log.read_text()
    # mpirun passes SIGUSR1 on, and waits; at SIGTERM it kills soon.
    launched.wait("none that runs", SLOW_S, lambda: job.asked.running() == 0)  # the answer is there a moment before
    asking = threading.Thread(target=lambda: later.append(job.asked.answer(400, SLOW_S, LONG)))
    asking.start()
    launched.wait("a request", SLOW_S, lambda: job.asked.running() > 0)
    job.mpirun.send_signal(signal.SIGUSR1)
    # A launcher may signal the coordinator's own process, too, and again: it is one end, not two.
    for _ in range(2):
        os.kill(launched.one(str(SLUICE), "serve", str(MODEL), "--remote", of=job.of), signal.SIGTERM)
    asking.join(SLOW_S)
    assert later and len(later[0]) == 400
    assert job.mpirun.wait(SLOW_S) == 0, job.log.read_text()
    job.nothing_is_left()


def test_a_wrong_number_of_tasks_is_no_job(tmp_path):
    """mpirun ends the others, and says which task failed."""
    r = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", SLUICE, "task", MODEL, "--attention", "1", "--experts", "2"],
                       env={**os.environ, "SLUICE_SECRET": "0123456789abcdef"}, capture_output=True, text=True, timeout=SLOW_S)
    assert r.returncode == 2 and "2 tasks: a coordinator and 3 workers are 4" in r.stderr, r.stderr
