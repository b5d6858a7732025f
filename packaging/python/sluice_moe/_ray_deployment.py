"""A deployment on Ray: the actors of its tasks, from their places to their end, and workers that come and go."""

from __future__ import annotations

import importlib
import os
import secrets
import socket
import time
import weakref
from types import TracebackType
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Type

from . import _ray_plan as _plan
from . import _ray_task
from ._client import Client
from ._errors import ConnectError, RefusedError, ServerError, SluiceError, UntrustedError
from ._server import Option

_COORDINATOR = -1  # among the numbers of workers
_HEARS_S = 5.0  # what an actor takes to hear of its end
_CALL_S = 30.0  # what an actor that is there may take for an answer
_GONE_S = 30.0  # beyond drain_timeout, until what still runs is killed
_ALWAYS = {"max_restarts": -1, "max_concurrency": 8}
running: "weakref.WeakSet[Deployment]" = weakref.WeakSet()


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.bind((host, 0))
        return int(s.getsockname()[1])


def _at(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _first_key(what: str, path: Option) -> str:
    try:
        with open(str(path), encoding="ascii") as f:
            return f.readline().strip()
    except (OSError, UnicodeDecodeError) as e:
        raise ValueError(f"{what}: {path}: {e}") from None


class Deployment:
    """What `deploy` returns. It lasts until `stop`, the end of the `with`, the end of the interpreter, or of this process.

    `url` is the server's; `places` are the plan's workers, free places among them. Used by one thread at a time."""

    def __init__(self, ray: Any, given: _plan.Given, model: str, name: str, executable: Optional[str], api_key: Optional[str],
                 options: Mapping[str, Option], cacert: Optional[str], placed_within: float) -> None:
        self.name = name
        self.places = given.places
        self._ray = ray
        self._given = given
        self._executable = executable
        self._placed_within = placed_within
        self._drain_timeout = _plan.number(options, "drain_timeout", 30, 86400)
        self._secret = secrets.token_hex(32)
        admin_key_file, api_key_file = options.get("admin_key_file"), options.get("api_key_file")
        self._admin_key = _first_key("admin_key_file", admin_key_file) if admin_key_file else secrets.token_hex(32)
        self._own_key = api_key
        self._cacert = cacert
        self._api_key = _first_key("api_key_file", api_key_file) if api_key_file else api_key
        self._actors: Dict[int, Any] = {}
        self._runs: Dict[int, Any] = {}
        self._made: Dict[int, int] = {}
        self._status: Optional[int] = None
        # This machine is the coordinator's, so its ports are chosen here, once: who is started again is where it was.
        self._node = ray.get_runtime_context().get_node_id()
        first = str(ray.util.get_node_ip_address())
        host = str(options.get("host") or "127.0.0.1")
        port = _plan.number(options, "port", 0, 65535) or _free_port(host)
        fabric = _plan.number(options, "fabric_port", 0, 65535) or _free_port(first)
        self.url = _at("https" if options.get("tls_cert") else "http", first if host in ("0.0.0.0", "::") else host, port)
        self._model = os.path.abspath(model) if os.path.exists(model) else model
        self._where = ["--first", first, "--fabric-port", str(fabric)]
        self._first_only = ["--fabric-host", first]
        self._variables = {**given.variables, "SLUICE_HOST": host, "SLUICE_PORT": str(port)}
        running.add(self)

    # ---- actors ----

    def _who(self, worker: int) -> str:
        return "coordinator" if worker == _COORDINATOR else self.places[worker].who

    def _needs(self, worker: int) -> _plan.Needs:
        return self._given.coordinator if worker == _COORDINATOR else self.places[worker].needs

    def _create(self, worker: int) -> None:
        """Asks Ray for the actor, which may have no place yet."""
        needs = dict(self._needs(worker))
        own = {"num_cpus": needs.pop("CPU", 0.0), "num_gpus": needs.pop("GPU", 0.0), "memory": int(needs.pop("memory", 0.0)) or None}
        if worker == _COORDINATOR:
            strategies = importlib.import_module("ray.util.scheduling_strategies")
            strategy = strategies.NodeAffinitySchedulingStrategy(self._node, soft=False)
        else:
            strategy = "SPREAD"  # different machines, where there are enough
        title = f"{self.name}-coordinator" if worker == _COORDINATOR else f"{self.name}-worker-{worker}"
        made_before = self._made.get(worker, 0)  # whose name Ray may not have given back yet
        self._made[worker] = made_before + 1
        title += f".{made_before}" if made_before else ""
        self._ray.cloudpickle.register_pickle_by_value(_ray_task)
        try:
            made = self._ray.remote(_ray_task.Task).options(name=title, scheduling_strategy=strategy, resources=needs, **own, **_ALWAYS)
            self._actors[worker] = made.remote(self._who(worker), worker != _COORDINATOR)
        except ValueError as e:
            raise ServerError(f"{self._who(worker)}: Ray refuses its actor: {e}") from None
        finally:
            self._ray.cloudpickle.unregister_pickle_by_value(_ray_task)

    def _run(self, worker: int) -> None:
        """Tells the actor, whether it has a place or not, what to run."""
        words = ["task", self._model, "--rank", str(worker + 1), *self._where]
        files: Dict[str, str] = {}
        if worker == _COORDINATOR:
            words += [*self._first_only, *self._given.words]
            files = {"admin_key_file": self._admin_key}
            if self._own_key is not None:
                files["api_key_file"] = self._own_key
            if self._given.plan is not None:
                files["plan"] = self._given.plan
        else:
            words += self._given.worker_words
        # Ray keeps arguments of calls in this process, and those of an actor's constructor elsewhere: the secret is one of these.
        run = self._actors[worker].run.options(max_task_retries=-1)
        self._runs[worker] = run.remote(self._executable, words, self._secret, self._variables, files)

    def _lacking(self, worker: int) -> str:
        """Which resource Ray has too little of."""
        alive = [n for n in self._ray.nodes() if n["Alive"] and (worker != _COORDINATOR or n["NodeID"] == self._node)]
        free = self._ray.available_resources()
        said = []
        for name, amount in sorted(self._needs(worker).items()):
            largest, unit = max([n["Resources"].get(name, 0.0) for n in alive], default=0.0), 1.0
            if name == "memory":
                unit = 1e6
            wants = f"{name}{' (MB)' if name == 'memory' else ''}: {amount / unit:g} wanted"
            if largest < amount:
                said.append(f"{wants}, {'this machine' if worker == _COORDINATOR else 'the largest machine'} has {largest / unit:g}")
            elif free.get(name, 0.0) < amount:
                said.append(f"{wants}, {free.get(name, 0.0) / unit:g} free")
        return "; ".join(said) or "what it wants is free, but not on one machine, or Ray has not started its process yet"

    def _await_placed(self, workers: Sequence[int], within: float) -> None:
        looks = {self._actors[w].look.remote(): w for w in workers}
        done, late = self._ray.wait(list(looks), num_returns=len(looks), timeout=max(0.0, within))
        for ref in done:
            try:
                self._ray.get(ref)
            except self._ray.exceptions.RayError as e:
                raise ServerError(f"{self._who(looks[ref])}: Ray has no place for it: {self._lacking(looks[ref])}; it says: {e}") from None
        if late:
            raise ServerError("\n".join(f"{self._who(w)}: has no place within {self._placed_within:g} s: {self._lacking(w)}"
                                        for w in sorted(looks[r] for r in late)))

    def _end(self, workers: Sequence[int], within: float) -> Dict[int, int]:
        """Tells the tasks, waits for their ends, gives their resources back. The exit statuses of those that ended in time."""
        actors = {w: self._actors.pop(w) for w in workers}
        runs = {self._runs.pop(w): w for w in workers if w in self._runs}
        statuses: Dict[int, int] = {}
        told = {actor.stop.remote(): w for w, actor in actors.items()}
        # Who has no place, or whose machine is gone, does not hear it, and is not waited for.
        heard, _ = self._ray.wait(list(told), num_returns=len(told), timeout=min(within, _HEARS_S))
        mine = [ref for ref, w in runs.items() if w in {told[h] for h in heard}]
        if mine:
            done, _ = self._ray.wait(mine, num_returns=len(mine), timeout=within)
            for ref in done:
                try:
                    statuses[runs[ref]] = int(self._ray.get(ref, timeout=_CALL_S)[0])
                except self._ray.exceptions.RayError:
                    pass  # its machine is gone
        for actor in actors.values():
            self._ray.kill(actor, no_restart=True)  # and what it runs, by the kernel
        return statuses

    def check(self, *, workers: bool = False) -> None:
        """ServerError, with what it said last, when the coordinator has ended for good (it cannot start), or with `workers` any task."""
        for worker, ref in list(self._runs.items()):
            if (workers or worker == _COORDINATOR) and self._ray.wait([ref], timeout=0)[0]:
                try:
                    status, log = self._ray.get(ref, timeout=_CALL_S)
                except self._ray.exceptions.RayError as e:
                    raise ServerError(f"{self._who(worker)}: Ray has given its actor up: {e}") from None
                raise ServerError(f"{self._who(worker)}: ended with {status}\n" + "\n".join(log))

    def start(self, ready_within: float) -> None:
        """Called by `deploy`."""
        first = [p.id for p in self.places if not p.spare]
        # The coordinator's place is on this machine alone, so it gets its own before workers fill that.
        placed = time.monotonic() + self._placed_within
        for together in ([_COORDINATOR], first):
            for worker in together:
                self._create(worker)
            self._await_placed(together, placed - time.monotonic())
        for worker in [*first, _COORDINATOR]:
            self._run(worker)
        until, client = time.monotonic() + ready_within, self.client(timeout=5.0)
        while True:
            self.check(workers=True)
            try:
                return client.wait_ready(0.5)
            except UntrustedError as e:
                raise ServerError(f"its certificate is refused (cacert has to have who signed it, and it has to name this address): {e}") from None
            except ConnectError as e:
                if time.monotonic() >= until:
                    said = self.log()
                    raise ServerError(f"not ready within {ready_within:g} s: {e}\n" + "\n".join(said)) from None

    # ---- what it is ----

    def client(self, *, timeout: float = 60.0) -> Client:
        """A client with this deployment's keys, that of workers' verbs among them."""
        return Client(self.url, api_key=self._api_key, admin_key=self._admin_key, timeout=timeout, cacert=self._cacert)

    def look(self, worker: Optional[int] = None, *, within: float = 30.0) -> Dict[str, Any]:
        """The actor of a worker, or of the coordinator: `node` and `address` in Ray, `pid` of its task (-1: none runs), `actor_pid`,
        `starts` of its task, `log`."""
        who = _COORDINATOR if worker is None else worker
        if who not in self._actors:
            raise ValueError(f"worker: {worker}: has no actor; these have one: {sorted(w for w in self._actors if w != _COORDINATOR)}")
        until = time.monotonic() + within
        while True:
            try:
                found: Dict[str, Any] = self._ray.get(self._actors[who].look.remote(), timeout=max(0.0, until - time.monotonic()))
                return found
            except self._ray.exceptions.RayError as e:  # Ray may be about to start it again
                if time.monotonic() >= until:
                    raise ServerError(f"{self._who(who)}: Ray has no answer of its actor within {within:g} s: {e}") from None
            time.sleep(0.2)

    def log(self, worker: Optional[int] = None) -> List[str]:
        """The last lines that the coordinator, or a worker, has said."""
        return list(self.look(worker)["log"])

    # ---- workers that come and go ----

    def _known(self, worker: int) -> int:
        if isinstance(worker, bool) or not isinstance(worker, int) or not 0 <= worker < len(self.places):
            raise ValueError(f"worker: {worker!r}: the plan has places 0 to {len(self.places) - 1}")
        return worker

    @staticmethod
    def _asked(verb: Callable[[], int], until: float) -> int:
        """Again as long as the server says that it is not the moment."""
        while True:
            try:
                return verb()
            except RefusedError as e:
                if e.code != "not_now" or time.monotonic() >= until:
                    raise
                time.sleep(min(1.0, e.retry_after or 1.0))

    def join(self, worker: int, *, within: float = 120.0) -> None:
        """A worker for a free place, or one that was drained: returns when it serves. When Ray has no place for it, it is wanted no longer."""
        until, client = time.monotonic() + within, self.client()
        operation = self._asked(lambda: client.join(self._known(worker)), until)
        try:
            if worker not in self._actors:
                self._create(worker)
                self._await_placed([worker], min(self._placed_within, within))
                self._run(worker)
            client.wait(worker, operation, max(0.0, until - time.monotonic()))
        except SluiceError:
            if worker in self._actors:
                self._end([worker], 0.0)
            try:
                client.drain(worker)
            except SluiceError:
                pass  # it was never there
            raise

    def drain(self, worker: int, *, grace: Optional[float] = None, within: float = 120.0) -> None:
        """Others take over what it does; requests may end there for `grace` seconds. Then Ray has its resources back."""
        until, client = time.monotonic() + within, self.client()
        operation = self._asked(lambda: client.drain(self._known(worker), timeout=grace), until)
        client.wait(worker, operation, max(0.0, until - time.monotonic()))
        if worker in self._actors:
            self._end([worker], 10.0)

    def scale(self, workers: int, role: str = "expert", *, within: float = 120.0) -> None:
        """So many workers of that role, by `join` of the first free places or `drain` of the last workers; each may take `within` seconds."""
        ids = [p.id for p in self.places if p.role == role]
        if not ids:
            raise ValueError(f"role: {role!r}: the plan has {', '.join(sorted({p.role for p in self.places}))}")
        if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= len(ids):
            raise ValueError(f"workers: {workers!r}: the plan has 1 to {len(ids)} places of {role} workers")
        away = {w.id for w in self.client().workers() if w.state in ("free", "drained")}
        there = [i for i in ids if i not in away]
        for i in [i for i in ids if i in away][:max(0, workers - len(there))]:
            self.join(i, within=within)
        for i in there[:workers - 1:-1] if workers < len(there) else []:
            self.drain(i, within=within)

    def follow(self) -> None:
        """Does what others have asked of the server (`sluice join`, `sluice drain`): an actor for a place that is open, none for one that
        is not. To be called now and then; the command line does. Ray may have no place yet for an actor that it makes."""
        for w in self.client().workers():
            away = w.state in ("free", "drained")
            if away and w.id in self._actors:
                self._end([w.id], 10.0)
            elif not away and w.id not in self._actors:
                self._create(w.id)
                self._run(w.id)

    # ---- the end ----

    def stop(self, *, within: Optional[float] = None) -> Optional[int]:
        """Running requests are answered first (`drain_timeout`), then everything ends; what has not `within` seconds (30 more than that
        option's) is killed. The coordinator's exit status; None: it was killed. May be called again."""
        if self in running:
            running.discard(self)
            if self._ray.is_initialized() and self._actors:
                within = self._drain_timeout + _GONE_S if within is None else within
                self._status = self._end(list(self._actors), within).get(_COORDINATOR)
        return self._status

    def __enter__(self) -> "Deployment":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.stop()
