"""A deployment on Ray: the coordinator and the workers of a plan are actors, placed by what the plan's workers take.

    import ray, sluice_moe.ray

    ray.init()
    with sluice_moe.ray.deploy("models/demo", attention=1, experts=2) as deployment:
        print(deployment.client().chat("Why is the sea salty?").text)

or `python -m sluice_moe.ray MODEL --attention 1 --experts 2`. Each actor runs `sluice task`, as Slurm and mpirun do. Ray itself is imported
when `deploy` is called.
"""

from __future__ import annotations

import argparse
import atexit
import importlib
import json
import os
import re
import secrets
import signal
import sys
import time
from typing import Any, Dict, Mapping, Optional, Sequence, Union

from . import _ray_plan as _plan
from ._errors import SluiceError
from ._program import program as _packaged
from ._ray_deployment import Deployment, running
from ._server import Option

__all__ = ["Deployment", "deploy", "main"]

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def _import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as e:
        raise SluiceError(f"Ray is not installed here ({e}): pip install ray") from None


def deploy(model: Union[str, "os.PathLike[str]"], plan: _plan.PlanGiven = None, *, name: Optional[str] = None, api_key: Optional[str] = None,
           resources: Optional[Mapping[str, Mapping[str, float]]] = None, program: Optional[str] = None,
           cacert: "Union[None, str, os.PathLike[str]]" = None, placed_within: float = 60.0, ready_within: float = 600.0,
           **options: Option) -> Deployment:
    """Places the coordinator on this machine and the plan's workers where Ray has what they take, and returns when requests are answered.
    Connects to Ray (`ray.init()`) if this process has not.

    `plan` is a plan.json, by path or as a dict; or say `attention`, `experts`. Any option `--some-name` of serve and worker is a keyword
    `some_name`. A worker takes its threads as CPUs, its weights, KV and 512 MB as memory, and a GPU where the plan has `cuda:N`.
    `resources` says other amounts, or Ray's custom resources: {"expert": {"CPU": 2, "fast_disk": 1}}, by role, by a worker's number, or
    of the "coordinator". `program` is another `sluice`, at the same path on all machines. With `tls_cert` and `tls_key`, files of this
    machine, the server speaks HTTPS; `cacert` is a file of certificates by which this deployment's own clients know it, instead of the
    system's. ServerError: Ray has no place for an actor
    within `placed_within` seconds (which resource lacks is said), or no request is answered within `ready_within`.
    """
    for what, seconds in (("placed_within", placed_within), ("ready_within", ready_within)):
        if not 0 < seconds <= 86400:
            raise ValueError(f"{what}: {seconds!r}: more than 0 and at most 86400 seconds are possible")
    if name is not None and not _NAME.fullmatch(name):
        raise ValueError(f"name: {name!r}: letters, digits and '_.-', 64 at most, are possible")
    if api_key is not None and "api_key_file" in options:
        raise ValueError("api_key: is said twice, as api_key_file is given")
    if cacert is not None and not options.get("tls_cert"):
        raise ValueError("cacert: the server has no certificate without tls_cert and tls_key")
    ray = _import_ray()
    atexit.unregister(_stop_all)  # Ray has its own, which comes after ours when it was there first
    atexit.register(_stop_all)
    given = _plan.read(program or _packaged(), os.fspath(model), plan, resources or {}, options)
    if not ray.is_initialized():
        ray.init()
    if ray.util.client.ray.is_connected():
        raise SluiceError("ray: this program is only a client of Ray (ray://): run it on one of Ray's machines, as `ray job submit` does")
    made = Deployment(ray, given, os.fspath(model), name or f"sluice-{secrets.token_hex(3)}", program, api_key, options,
                      None if cacert is None else os.fspath(cacert), placed_within)
    try:
        made.start(ready_within)
    except BaseException:
        made.stop(within=0.0)  # nobody has asked it anything
        raise
    return made


def _stop_all() -> None:
    for deployment in list(running):
        deployment.stop()


def _options_of(words: Sequence[str]) -> Dict[str, Option]:
    """`--some-name value`, `--some-name=value`, or `--some-name` alone."""
    options: Dict[str, Option] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"{word!r}: is no option")
        key, has_value, value = word[2:].partition("=")
        if not has_value and rest and not rest[0].startswith("--"):
            value, has_value = rest.pop(0), "="
        options[key.replace("-", "_")] = value if has_value else True
    return options


class _Told(Exception):
    """SIGTERM or SIGINT came."""


def _tell(*_: object) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the same again says nothing new
    raise _Told


def _resources_of(text: str) -> Dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as e:
        raise ValueError(f"resources: is no JSON: {e}") from None
    if not isinstance(found, dict):
        raise ValueError(f"resources: {text} has no names, as {{\"expert\": {{\"CPU\": 2}}}}")
    return found


def _serve(ray: Any, model: str, args: argparse.Namespace, options: Mapping[str, Any]) -> int:
    resources = _resources_of(args.resources)
    ray.init(address=args.address, log_to_driver=args.show_log)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _tell)
    try:
        with deploy(model, args.plan, name=args.name, resources=resources, program=args.program, cacert=args.cacert,
                    placed_within=args.placed_within, ready_within=args.ready_within, **options) as deployment:
            print(f"listening on {deployment.url} ({deployment.name} on Ray, {len(deployment.places)} places)", flush=True)
            try:
                _follow(deployment)
            except _Told:
                status = deployment.stop()
                return 1 if status is None else status
    except _Told:
        return 0  # before it was ready
    return 1


def _follow(deployment: Deployment) -> None:
    """Until the coordinator has ended for good (ServerError)."""
    while True:
        deployment.check()
        try:
            deployment.follow()
        except SluiceError:
            pass  # the coordinator is being started again
        time.sleep(1.0)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """`python -m sluice_moe.ray MODEL`: a deployment until SIGTERM or SIGINT. The exit status."""
    parser = argparse.ArgumentParser(prog="python -m sluice_moe.ray", allow_abbrev=False, epilog="Any other option is one of sluice serve.",
                                     description="A deployment on Ray, until SIGTERM or Ctrl-C.")
    parser.add_argument("model")
    parser.add_argument("--plan", help="plan.json instead of --attention and --experts")
    parser.add_argument("--address", help="of the Ray to use; left out: RAY_ADDRESS, or the one that runs here, or a new one")
    parser.add_argument("--name", help="of the actors, as NAME-worker-0 [sluice-..]")
    parser.add_argument("--resources", default="{}", help='what workers take, as {"expert": {"CPU": 2}}')
    parser.add_argument("--program", help="sluice, at the same path on all machines; left out: the package's own")
    parser.add_argument("--cacert", help="certificates by which this program knows a server with --tls-cert; left out: the system's")
    parser.add_argument("--placed-within", type=float, default=60.0, help="seconds until Ray has a place for all [60]")
    parser.add_argument("--ready-within", type=float, default=600.0, help="seconds until requests are answered [600]")
    parser.add_argument("--show-log", action="store_true", help="show here what the actors say")
    args, others = parser.parse_known_args(argv)
    try:
        return _serve(_import_ray(), args.model, args, _options_of(others))
    except ValueError as e:
        print(f"sluice_moe.ray: {e}", file=sys.stderr)
        return 2
    except (SluiceError, ConnectionError) as e:
        print(f"sluice_moe.ray: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
