"""`sluice serve` with worker processes on this machine, for tests that stop, kill and count them, and for benches that time that.

The program is SLUICE_BIN (default build/sluice)."""

import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

import ended
from workers import workers_of

ROOT = pathlib.Path(__file__).resolve().parents[1]
SLUICE = pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve()
STARTS_WITHIN_S = 60


def refusal(folder, model, options):
    """How `serve` ends with options that it refuses, and what it says; DEVICE among them is an emulated device's file."""
    device = folder / "device.json"
    device.write_text('{"attention": {"row": 50}, "expert": {"row": 50}}')
    options = [o.replace("DEVICE", str(device)) for o in options]
    ran = subprocess.run([SLUICE, "serve", model, "--port", "0", *options], text=True, capture_output=True, timeout=30)
    return ran.returncode, ran.stderr


class Server:
    """Serves the model as "m" at a port of its own; `log` has what it says on stderr."""

    def __init__(self, model, *options, environment=None):
        command = [SLUICE, "serve", model, "--port", "0", "--served-model-name", "m", *options]
        self.process = ended.start(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.log = []
        self.port = None
        deadline = time.monotonic() + STARTS_WITHIN_S
        while self.port is None:
            line = self.process.stderr.readline()
            self.log.append(line or "it has ended")
            assert line and time.monotonic() < deadline, "".join(self.log)
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
            self.port = int(found.group(1)) if found else None
        self.url = f"http://127.0.0.1:{self.port}"
        self.reader = threading.Thread(target=self._drain, daemon=True)
        self.reader.start()

    def _drain(self):
        for line in self.process.stderr:
            self.log.append(line)

    def workers(self):
        """Worker of the plan -> the child process that was told to be this worker."""
        return workers_of(self.process.pid)

    def worker_pid(self, worker, within_s=10):
        """A worker that was lost may be on its way again, and is no process yet."""
        deadline = time.monotonic() + within_s
        while worker not in (found := self.workers()):
            assert time.monotonic() < deadline, f"worker {worker} is no process: {found}"
            time.sleep(0.01)
        return found[worker]

    def request(self, method, path, body=None, timeout=30):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        return connection.getresponse()

    def metrics(self, name):
        """The values of a metric, one for each of its labels."""
        text = self.request("GET", "/metrics").read().decode()
        return [float(value) for value in re.findall(rf"^sluice:{name}(?:\{{.*\}})? (\S+)$", text, re.M)]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
        return self.process.returncode

    def stop_well(self):
        """Asserts that it ended as it should, or says what came instead."""
        code = self.stop()
        self.reader.join(5)
        assert code == 0, f"it ended with {code}, and said at last:\n{''.join(self.log[-20:])}"
