"""The actor of `sluice_moe.ray`: one task of a deployment (`sluice task`), a process that is started again when something kills it,
and that ends with its actor, however that ends. Ray gets it by value, so nothing of this package may be used here at its top: a machine
without the package says so in words."""

from __future__ import annotations

import collections
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

_LINES_KEPT = 200
_SERVED_S = 60.0  # a process that lived so long is started again at once
_PAUSE_MOST_S = 10.0

# A process between Ray's and the program: it asks the kernel to be killed with the thread that has started it, and becomes the program.
# Python's own hook for that (preexec_fn) runs beside the threads of Ray, whose locks a forked child would wait for.
_BECOME = """import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
os.getppid() == int(sys.argv[1]) or os._exit(1)
os.execve(sys.argv[2], sys.argv[2:], os.environ)"""


def memory_file(text: str) -> int:
    """A file without a name, of this user alone, so that keys are on no disk and in no variable. Its descriptor."""
    fd = os.memfd_create("sluice")
    os.fchmod(fd, 0o600)
    os.write(fd, text.encode())
    return fd


def pause(fails: int) -> float:
    """Seconds before the next start after so many ends in a row: 0, 1, 2, 4, .."""
    return 0.0 if fails <= 1 else min(_PAUSE_MOST_S, float(2 ** (fails - 2)))


def _installed() -> Tuple[str, Dict[str, str]]:
    """The program of the package on this machine, and its environment."""
    try:
        found = importlib.import_module("sluice_moe._program")
    except ImportError as e:
        return f"sluice_moe ({e})", dict(os.environ)
    return str(found.program()), dict(found.environment())


class Task:
    """Ray calls `run` again when it has started the actor again, with the same arguments: they are kept by the program that deploys, in
    its memory. The other calls come beside it."""

    def __init__(self, who: str, endless: bool) -> None:
        self._who = who
        self._endless = endless  # a worker: its task ends by itself, with 0, when it was drained and then misses its coordinator
        self._lock = threading.Lock()
        self._process: "Optional[subprocess.Popen[str]]" = None
        self._starts = 0
        self._log: Deque[str] = collections.deque(maxlen=_LINES_KEPT)
        self._told = threading.Event()

    def run(self, executable: Optional[str], words: Sequence[str], secret: str, variables: Mapping[str, str],
            files: Mapping[str, str]) -> Tuple[int, List[str]]:
        """Runs the program until it is over: the exit status and the last lines that it said. `files`: option -> text of its file."""
        own, env = _installed()
        executable = executable or own
        if not os.access(executable, os.X_OK):
            return 127, [f"{executable}: is not on the machine where Ray has placed {self._who}"]
        held = {option: memory_file(text) for option, text in files.items()}
        given = [*words, "--secret-file", "-"]
        env.update(variables)
        for option, fd in held.items():
            # What the task itself has no option for, its coordinator reads as a variable.
            if option == "plan":
                given += ["--plan", f"/proc/self/fd/{fd}"]
            else:
                env["SLUICE_" + option.upper()] = f"/proc/self/fd/{fd}"
        fails = 0
        try:
            while True:
                began = time.monotonic()
                status = self._once([executable, *given], secret, env, list(held.values()))
                # An exit status is the task's own word that another try is in vain.
                if self._told.is_set() or status > 0 or (status == 0 and not self._endless):
                    return status, list(self._log)
                lived = time.monotonic() - began
                fails = 1 if lived > _SERVED_S else fails + 1
                shown = status if status >= 0 else 128 - status
                self._say(f"{self._who}: its task ended with {shown} after {lived:.1f} s: the next one in {pause(fails):.0f} s")
                self._told.wait(pause(fails))
        finally:
            for fd in held.values():
                os.close(fd)

    def _once(self, command: List[str], secret: str, env: Dict[str, str], fds: List[int]) -> int:
        with self._lock:
            if self._told.is_set():
                return 0
            process = self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, env=env, pass_fds=fds, text=True, errors="replace")
            self._starts += 1
        assert process.stdin is not None and process.stdout is not None
        reader = threading.Thread(target=self._read, args=(process.stdout,), name="sluice-log", daemon=True)
        reader.start()
        try:
            with process.stdin as to:
                to.write(secret + "\n")
        except BrokenPipeError:
            pass  # it has ended already, and its status says why
        status = process.wait()
        reader.join(10)
        return status

    def _read(self, lines: Any) -> None:
        with lines:
            for line in lines:
                self._say(line.rstrip("\n"))

    def _say(self, line: str) -> None:
        """To Ray's log of this actor, which Ray shows in the program that deploys, too."""
        self._log.append(line)
        print(line, file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Running requests are answered, then `run` returns."""
        with self._lock:
            self._told.set()
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)

    def look(self) -> Dict[str, Any]:
        """Where it is, its process, how often that was started, what it said last."""
        ray = importlib.import_module("ray")
        process = self._process
        return {"node": ray.get_runtime_context().get_node_id(), "address": ray.util.get_node_ip_address(), "actor_pid": os.getpid(),
                "pid": process.pid if process is not None and process.poll() is None else -1, "starts": self._starts, "log": list(self._log)}
