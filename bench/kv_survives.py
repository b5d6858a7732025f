"""A request with a long prompt behind it whose attention worker is killed: how long its stream pauses, and what is computed again.

usage: bench/kv_survives.py MODEL [--prompt 4096] [--kills 3] [-- OPTIONS OF serve]

Starts `build/sluice serve MODEL` with worker processes, streams one answer, kills the attention worker that runs it (kill -9) again and again
while tokens come, and compares ids and log-probabilities with those of the same request undisturbed. Prints one line a kill:
the pause (from the last token before it to the next), the longest pause of the undisturbed stream, rows kept and computed again."""

import argparse
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Server:
    def __init__(self, model, options):
        program = os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")
        command = [program, "serve", model, "--port", "0", "--served-model-name", "m", "--log", "info", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log, self.port = [], None
        while self.port is None:
            line = self.process.stderr.readline()
            assert line, "".join(self.log)
            self.log.append(line)
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
            self.port = int(found.group(1)) if found else None
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()

    def worker_pid(self, worker):
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            for pid in (task / "children").read_text().split():
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"--worker-id" in words and int(words[words.index(b"--worker-id") + 1]) == worker:
                    return int(pid)
        return None

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        return connection.getresponse()

    def metric(self, name):
        return int(float(re.search(rf"^sluice:{name}\S* (\S+)", self.ask("GET", "/metrics").read().decode(), re.M)[1]))

    def where(self):
        """The attention worker of the last request that started."""
        return int([re.search(r"starts at worker (\d+)", line) for line in self.log if "starts at worker" in line][-1][1])


def stream(server, prompt, tokens, on_token=lambda n, now: None):
    """Ids, log-probabilities, and when each token came."""
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, "logprobs": 0}
    ids, logprobs, at = [], [], []
    for raw in server.ask("POST", "/v1/completions", body):
        line = raw.decode().strip()
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        assert "error" not in event, event
        for choice in event["choices"]:
            got = choice.get("token_ids") or []
            ids += got
            logprobs += (choice.get("logprobs") or {}).get("token_logprobs") or []
            at += [time.monotonic()] * len(got)
            if got:
                on_token(len(ids), at[-1])
    return ids, logprobs, at


def gaps(at):
    return [b - a for a, b in zip(at, at[1:])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--every", type=int, default=24, help="tokens between two kills")
    options, more = parser.parse_known_args()
    more = [o for o in more if o != "--"] or ["--attention", "1", "--experts", "2", "--schedule", "dep"]
    tokens = options.every * (options.kills + 1)
    server = Server(options.model, ["--exact", "--ctx", str(options.prompt + tokens), *more])
    prompt, kills = [(7919 * i + 11) % 20000 + 100 for i in range(options.prompt)], []

    def strike(n, now):
        if n % options.every == 0 and len(kills) < options.kills:
            os.kill(server.worker_pid(server.where()), signal.SIGKILL)
            kills.append(n)

    try:
        ids, logprobs, at = stream(server, prompt, tokens, strike)
        kept, again = server.metric("rows_kept_total"), server.metric("rows_recomputed_total")
        plain, plain_logprobs, plain_at = stream(server, prompt, tokens)
        same = ids == plain and logprobs == plain_logprobs and len(ids) == tokens
        undisturbed = max(gaps(plain_at))
        for n in kills:
            print(f"killed after {n} tokens: pause {max(gaps(at)[n - 1:n + 3]):.2f} s")
        print(f"undisturbed {undisturbed:.2f} s at most; {kept} rows kept, {again} computed again; same ids and log-probabilities: {same}")
    finally:
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
    sys.exit(0 if same and kept >= options.prompt else 1)


if __name__ == "__main__":
    main()
