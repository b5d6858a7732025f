"""What `sluice_moe.ray` reads before it asks Ray for anything: the plan's places, what each of them takes, options."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

from ._errors import SluiceError
from ._program import environment
from ._server import Option

PlanGiven = Union[None, str, "os.PathLike[str]", Mapping[str, Any]]
Needs = Dict[str, float]  # resource as Ray names it -> how much of it
_PLACE = re.compile(r"^#   task \d+  worker (\d+), (attention|expert|both)( \(a free place\))?: weights ([\d.]+) MB, KV up to ([\d.]+) MB$", re.M)
_THREADS = re.compile(r"^#SBATCH --cpus-per-task=(\d+)$", re.M)
_OPTION = re.compile(r"^  --([a-z0-9-]+)", re.M)
_GPU = re.compile(r"cuda:\d+")
_MB = 1e6
_EXTRA_MB = 512.0  # of a worker for buffers, as the other launchers set aside
_SLOWEST_S = 60.0  # of reading a model's headers
# What `sluice task` takes as options; everything else of serve and worker are variables to it.
_OF_TASK = ("attention", "experts", "max_attention", "max_experts", "threads", "join_timeout", "drain_timeout")
_PATHS = ("api_key_file", "chat_template", "journal", "tls_cert", "tls_key")  # of the coordinator, whose folder is another one
_OF_PLAN = ("attention", "experts", "max_attention", "max_experts", "threads")
# Options that deploy says itself, and why not you.
_IN_PLAN = "the plan's workers say it, so that Ray hears of it"
_NOT_YOURS = {"remote": "workers are always Ray's", "secret": "each deployment makes its own", "secret_file": "each deployment makes its own",
              "device": _IN_PLAN, "attention_device": _IN_PLAN, "expert_device": _IN_PLAN, "worker_id": _IN_PLAN, "rank": _IN_PLAN,
              "join": "Ray says where", "first": "Ray says where", "fabric_host": "Ray says where"}


@dataclass(frozen=True)
class Place:
    """A worker of the plan; `spare`: nobody is there at the start."""

    id: int
    role: str  # "attention", "expert" or "both"
    spare: bool
    needs: Needs

    @property
    def who(self) -> str:
        return f"worker {self.id} ({self.role})"


@dataclass(frozen=True)
class Given:
    """A deployment as it was asked for, checked."""

    places: Tuple[Place, ...]
    coordinator: Needs
    words: Tuple[str, ...]  # options of the coordinator's task
    worker_words: Tuple[str, ...]
    variables: Dict[str, str]
    plan: Optional[str]  # the text of the plan's file


def _run(program: str, words: Sequence[str]) -> str:
    env = {k: v for k, v in environment().items() if not k.startswith("SLUICE_")}  # what holds is said here
    try:
        done = subprocess.run([program, *words], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              errors="replace", timeout=_SLOWEST_S, check=False)
    except OSError as e:
        raise SluiceError(f"program: {program}: {e.strerror}") from None
    except subprocess.TimeoutExpired:
        raise SluiceError(f"sluice {words[0]}: no answer within {_SLOWEST_S:.0f} s") from None
    if done.returncode:
        raise SluiceError(done.stderr.strip())
    return done.stdout


def _text_of(value: Option) -> str:
    return "1" if value is True else str(value)


def number(options: Mapping[str, Option], name: str, usual: int, most: int) -> int:
    """An option that is needed here, too."""
    value = options.get(name)
    text = str(usual if value is None else value)
    if not text.isdecimal() or int(text) > most:
        raise ValueError(f"{name}: {value!r} is not a whole number from 0 to {most}")
    return int(text)


def _read_plan(plan: PlanGiven) -> Optional[str]:
    if plan is None:
        return None
    if isinstance(plan, Mapping):
        return json.dumps(plan)
    try:
        with open(plan, encoding="utf-8") as f:
            return f.read()
    except (OSError, UnicodeDecodeError) as e:
        raise ValueError(f"plan: {os.fspath(plan)}: {e}") from None


def _with_own_gpus(text: str) -> Tuple[str, Set[int]]:
    """Ray gives a worker a GPU of its own, which is cuda:0 there, whichever the plan has named: the plan for Ray, and who wants one."""
    plan = json.loads(text)
    wanted = set()
    for i, worker in enumerate(plan["workers"]):
        if _GPU.fullmatch(str(worker.get("device", ""))):
            worker["device"] = "cuda:0"
            wanted.add(i)
    return (json.dumps(plan) if wanted else text), wanted


def _check_options(program: str, options: Mapping[str, Option]) -> None:
    for name, why in _NOT_YOURS.items():
        if name in options:
            raise ValueError(f"{name}: is no option here: {why}")
    known: Set[str] = set()
    for verb in ("serve", "worker", "task"):
        known.update(n.replace("-", "_") for n in _OPTION.findall(_run(program, [verb, "--help"])))
    for name in options:
        if name not in known:
            raise ValueError(f"{name}: is no option of sluice serve, worker or task")


def _overridden(needs: Needs, resources: Mapping[str, Mapping[str, float]], *keys: str) -> Needs:
    out = dict(needs)
    for key in keys:
        for name, amount in resources.get(key, {}).items():
            if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 <= amount < 1e18:
                raise ValueError(f"resources: {key}: {name}: {amount!r} is no amount from 0 on")
            out[name] = float(amount)
    return out


def _check_resources(resources: Mapping[str, Mapping[str, float]], n: int) -> None:
    for key, needs in resources.items():
        if key not in ("coordinator", "attention", "expert", "both") and not (key.isdigit() and int(key) < n):
            raise ValueError(f"resources: {key!r} is none of coordinator, attention, expert, both, and no worker from 0 to {n - 1}")
        if not isinstance(needs, Mapping):
            raise ValueError(f"resources: {key}: {needs!r} has no names and amounts, as {{\"CPU\": 2}}")


def read(program: str, model: str, plan: PlanGiven, resources: Mapping[str, Mapping[str, float]], options: Mapping[str, Option]) -> Given:
    """Asks the program, as the other launchers do, which workers there are and how much memory each takes."""
    options = {k: v for k, v in options.items() if v is not None and v is not False}
    _check_options(program, options)
    for name, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if name in options and other not in options:
            raise ValueError(f"{name}: {other} is missing, which belongs to it")
    for name, most in (("port", 65535), ("fabric_port", 65535), ("drain_timeout", 86400)):
        number(options, name, 0, most)
    text, wanting = _read_plan(plan), set()  # type: Optional[str], Set[int]
    words: List[str] = []
    for name in _OF_PLAN:
        if name in options:
            words += ["--" + name.replace("_", "-"), _text_of(options[name])]
    with tempfile.NamedTemporaryFile("w", prefix="sluice-plan-", suffix=".json", encoding="utf-8") as file:
        if text is not None:
            file.write(text)
            file.flush()
            words += ["--plan", file.name]
        try:
            said = _run(program, ["slurm", model, *words])
        except SluiceError as e:
            raise SluiceError(str(e).replace(file.name, "plan")) from None
    threads = _THREADS.search(said)
    found = _PLACE.findall(said)
    if not found or not threads:
        raise SluiceError(f"{program}: is another version than this package: it lists no workers of a job")
    if text is not None:
        text, wanting = _with_own_gpus(text)
    _check_resources(resources, len(found))
    places = []
    for worker, role, spare, weights, kv in found:
        i = int(worker)
        needs: Needs = {"CPU": float(threads[1]), "memory": (float(weights) + float(kv) + _EXTRA_MB) * _MB}
        if i in wanting:
            needs["GPU"] = 1.0
        places.append(Place(i, role, bool(spare), _overridden(needs, resources, role, worker)))
    # What every task is told: the number of threads that Ray was told, too.
    told = {**{k: v for k, v in options.items() if k in _OF_TASK}, "threads": threads[1]}
    coordinator_words = [w for k, v in told.items() for w in ("--" + k.replace("_", "-"), _text_of(v))]
    of_workers = ("threads", "join_timeout", "drain_timeout")
    worker_words = [w for k, v in told.items() if k in of_workers for w in ("--" + k.replace("_", "-"), _text_of(v))]
    variables = {"SLUICE_" + k.upper(): os.path.abspath(_text_of(v)) if k in _PATHS else _text_of(v)
                 for k, v in options.items() if k not in _OF_TASK}
    coordinator = _overridden({"CPU": 1.0, "memory": 1000 * _MB}, resources, "coordinator")
    return Given(tuple(places), coordinator, tuple(coordinator_words), tuple(worker_words), variables, text)
