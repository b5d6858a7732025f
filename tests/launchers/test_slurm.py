"""`sluice slurm`: the batch script, and a job of it under a Slurm that these tests start for themselves (munged, slurmctld, and
slurmd twice, as two nodes of this machine) in a folder of their own."""

import getpass
import os
import pathlib
import shutil
import socket
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
NEEDED = ["munged", "slurmctld", "slurmd", "sbatch"]
MISSING = [program for program in NEEDED if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin")]
needs_slurm = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)}: apt-get install slurmctld slurmd slurm-client munge")
SLOW_S = 180  # a machine that does other things, too
LONG = 64  # answers at once: a second at least, where one takes less than a look does


def script(*options):
    return subprocess.run([SLUICE, "slurm", MODEL, *options], check=True, capture_output=True, text=True).stdout


def refused(*options):
    r = subprocess.run([SLUICE, "slurm", MODEL, *options], capture_output=True, text=True)
    assert r.returncode != 0 and not r.stdout
    return r.stderr


def test_the_script_has_the_plans_tasks_and_no_secret(tmp_path):
    plan = tmp_path / "a plan's.json"
    plan.write_text('{"version": 1, "schedule": "dep", "threads": 3, "workers": [{"roles": ["attention"]}, {"roles": ["expert"]}]}')
    text = script("--plan", plan, "--time", "1-12:30:00", "--partition", "long", "--nodes", "2", "--drain-timeout", "40")
    for line in ("--ntasks=3", "--cpus-per-task=3", "--time=1-12:30:00", "--partition=long", "--nodes=2", "--signal=TERM@70"):
        assert f"\n#SBATCH {line}\n" in text
    assert "# " + "  task 2  worker 1, expert" in text and "'" + str(plan).replace("'", "'\\''") + "'" in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_words_that_are_no_words_of_a_script_are_refused():
    assert "--partition: 'a b'" in refused("--attention", "1", "--experts", "1", "--partition", "a b")
    assert "--time: '1;reboot'" in refused("--attention", "1", "--experts", "1", "--time", "1;reboot")
    assert "nothing.json" in refused("--plan", "nothing.json")


def task(*options, **variables):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "OMPI", "PMI", "LWS"))}
    return subprocess.run([SLUICE, "task", MODEL, *options], env={**env, **variables}, input="", capture_output=True, text=True, timeout=60)


def test_a_task_that_nobody_has_numbered_says_what_is_missing():
    for r, why in ((task(), "SLURM_PROCID, OMPI_COMM_WORLD_RANK"), (task(SLURM_PROCID="x"), "SLURM_PROCID: 'x'"),
                   (task(OMPI_COMM_WORLD_RANK="3", OMPI_COMM_WORLD_SIZE="2"), "rank 3 of 2"),
                   (task(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_SIZE="1"), "--first HOST"),
                   (task(SLURM_PROCID="1", SLURM_JOB_NODELIST="n[1-2]"), "a secret is needed"),
                   (task("--rank", "0", "--secret-file", "-"), "secret")):
        assert r.returncode == 2 and why in r.stderr, (why, r.stderr)


@pytest.mark.parametrize("names, first", [("rack[0-3]n[07,09].invalid,other", "rack0n07.invalid"), ("n1.invalid,n2", "n1.invalid")])
def test_a_worker_looks_for_the_first_machine_of_the_job_and_ends_when_told(names, first, tmp_path):
    secret = tmp_path / "secret"
    subprocess.run([SLUICE, "secret", "--out", secret], check=True, capture_output=True)
    env = {**os.environ, "SLURM_PROCID": "2", "SLURM_JOB_NODELIST": names}
    with ended.scope():
        worker = ended.start([SLUICE, "task", MODEL, "--secret-file", secret], env=env, stderr=subprocess.PIPE, text=True)
        assert f"worker 1: the coordinator's host '{first}'" in worker.stderr.readline()
        worker.terminate()
        assert worker.wait(30) == 0 and not worker.stderr.read()


class Slurm:
    """A cluster of two nodes, both this machine."""

    def __init__(self, folder):
        self.folder, ports = folder, [launched.free_port() for _ in range(3)]
        self.env = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin", "SLURM_CONF": str(folder / "slurm.conf"), "TMPDIR": str(folder / "tmp")}
        self.of = f"SLURM_CONF={self.env['SLURM_CONF']}"  # jobs have it from those who submit them
        for name in ("state", "n1", "n2", "munge", "tmp"):
            (folder / name).mkdir(mode=0o755)
        (folder / "munge" / "key").write_bytes(os.urandom(128))
        (folder / "munge" / "key").chmod(0o400)
        (folder / "slurm.conf").write_text(f"""
ClusterName=test
SlurmctldHost={socket.gethostname()}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthInfo=socket={folder}/munge/socket
SlurmUser={getpass.getuser()}
SlurmdUser={getpass.getuser()}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=60
NodeName=n1 NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=16000
NodeName=n2 NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=16000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
""")
        m = folder / "munge"
        self.start("munged", "--foreground", "--force", f"--key-file={m}/key", f"--socket={m}/socket", f"--pid-file={m}/pid",
                   f"--log-file={m}/log", f"--seed-file={m}/seed", "--num-threads=2")
        launched.wait("munge", SLOW_S, (m / "socket").exists)
        self.start("slurmctld", "-D")
        for node in ("n1", "n2"):
            self.start("slurmd", "-D", "-N", node)
        launched.wait("two nodes", SLOW_S, lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2")

    def start(self, program, *words):
        with open(self.folder / f"{program}.log", "a") as log:
            ended.start([shutil.which(program, path=self.env["PATH"]), *words], env=self.env, stdout=log, stderr=log, cwd=self.folder)

    def run(self, *command, text=None):
        r = subprocess.run(command, env=self.env, input=text, capture_output=True, text=True, timeout=SLOW_S, cwd=self.folder)
        assert r.returncode == 0, (command, r.stderr)
        return r.stdout

    def log_of(self, job):
        return (self.folder / f"slurm-{job}.out").read_text()

    def state(self, job):
        return self.run("scontrol", "show", "job", job).split("JobState=")[1].split()[0]


@pytest.fixture
def slurm(tmp_path):
    with ended.scope() as started:
        cluster = Slurm(tmp_path)
        try:
            yield cluster
        finally:
            cluster.run("scancel", "--user", getpass.getuser())
            launched.wait("an empty cluster", SLOW_S, lambda: not cluster.run("squeue", "-h").strip())
            for process in started():
                process.terminate()


class Job:
    def __init__(self, cluster, *options):
        self.cluster, port = cluster, launched.free_port()
        text = script("--attention", "1", "--experts", "2", "--nodes", "2", "--port", str(port), *options)
        text = text.replace("\nset -u", "\nexport SLUICE_EXACT=1\nset -u")
        self.id = cluster.run("sbatch", "--parsable", text=text).strip()
        self.asked = launched.Asked(port)
        try:
            launched.wait("an answer", SLOW_S, self.asked.is_ready)
        except AssertionError as e:
            raise AssertionError(f"{cluster.run('scontrol', 'show', 'job', self.id)}\n{cluster.log_of(self.id)}") from e

    def folders(self):
        return list((self.cluster.folder / "tmp").iterdir())

    def worker(self, i):
        return launched.one("--worker-id", str(i), "--fabric-host", of=self.cluster.of)


def ours(cluster):
    """Tasks, and what they have started; srun, too."""
    return [pid for words in (["task", str(MODEL)], ["serve", str(MODEL), "--remote"], ["--model", str(MODEL)]) for pid in launched.processes(*words, of=cluster.of)]


def await_end(job, state):
    launched.wait(state, SLOW_S, lambda: job.cluster.state(job.id) == state)
    launched.wait("nothing left", SLOW_S, lambda: not ours(job.cluster))
    assert not job.folders()


@needs_slurm
def test_a_job_answers_outlives_a_worker_and_leaves_nothing(slurm):
    job = Job(slurm)
    said = job.asked.answer()
    assert len(said) == 24
    # The secret: in one file of this user, and nowhere that others look.
    [folder] = job.folders()
    secret = (folder / "secret").read_text().strip()
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "secret").stat().st_mode & 0o777 == 0o600 and len(secret) == 64
    assert not [line for line in launched.processes().values() if secret in " ".join(line)]
    assert secret not in slurm.run("scontrol", "-dd", "show", "job", job.id) + slurm.run("scontrol", "write", "batch_script", job.id, "-")
    for pid in ours(slurm):
        assert secret not in pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    # A worker is killed in the middle of an answer: the answer goes on, another one takes its place.
    victim, later = job.worker(1), []
    asking = threading.Thread(target=lambda: later.append(job.asked.answer(200)))
    asking.start()
    launched.kill(victim)
    asking.join(SLOW_S)
    assert later and later[0][:24] == said
    launched.wait("another worker 1", SLOW_S, lambda: job.worker(1) != victim)
    launched.wait("all well", SLOW_S, job.asked.is_ready)
    assert job.asked.answer() == said and "worker 1 ended with 137" in slurm.log_of(job.id)
    # So is the coordinator.
    launched.kill(launched.one(str(SLUICE), "serve", str(MODEL), "--remote", of=slurm.of))
    launched.wait("the next coordinator", SLOW_S, job.asked.is_ready)
    assert job.asked.answer() == said
    slurm.run("scancel", job.id)
    await_end(job, "CANCELLED")


@needs_slurm
def test_a_signal_before_the_time_limit_ends_a_job_when_it_has_answered(slurm):
    """What `#SBATCH --signal` sends is this signal, to the tasks."""
    job, later = Job(slurm), []
    asking = threading.Thread(target=lambda: later.append(job.asked.answer(400, SLOW_S, LONG)))
    asking.start()
    launched.wait("a request", SLOW_S, lambda: job.asked.running() > 0)
    slurm.run("scancel", "--signal=TERM", job.id)
    asking.join(SLOW_S)
    assert later and len(later[0]) == 400
    await_end(job, "COMPLETED")
