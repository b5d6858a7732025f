#!/usr/bin/env python3
"""Many streams at once against one server, then its books.

    tests/soak/crowd.py SLUICE MODEL [--streams 5000] [--tokens 24] [-- SERVE OPTIONS]

Of ten streams one leaves half-way, one reads slowly, the others read to the end. All are open at the same
time: connected before the first request is sent. At the end every stream that stayed has all its tokens,
streams of one prompt have the same text, and the server's books balance: nothing runs or waits, no page is
taken, on every worker rows created = merged + cancelled + lost, and of rows asked of two
asked = counted + late + lost + out. Standard library only."""
import argparse
import asyncio
import json
import pathlib
import re
import resource
import socket
import subprocess
import sys
import threading
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import ended  # noqa: E402

PROMPTS = [[3, 17, 41 + i, 5, 9, 2, 7, 11][: 3 + i % 6] for i in range(12)]
CONNECTING = 200  # connections that are being opened at a time
BALANCE_S = 30


def start(sluice, model, options, environment=None):
    process = ended.start([sluice, "serve", model, "--port", "0", "--served-model-name", "m", *options],
                          stderr=subprocess.PIPE, text=True, env=environment)
    lines = []
    for line in process.stderr:
        lines.append(line)
        found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", line)
        if found:
            threading.Thread(target=lambda: lines.extend(process.stderr), daemon=True).start()
            return process, int(found.group(1)), lines
    raise RuntimeError("the server did not start: " + "".join(lines))


def metrics(port):
    """{name: {labels: value}}"""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    out = {}
    for name, labels, value in re.findall(r"^sluice:(\w+)(?:\{(.*)\})? (\S+)$", text, re.M):
        out.setdefault(name, {})[labels or ""] = float(value)
    return out


def total(m, name, label=""):
    return sum(v for k, v in m.get(name, {}).items() if label in k)


def unbalanced(m):
    """What is not as it should be when nothing runs; empty: nothing."""
    wrong = [f"{name} is {total(m, name):g}" for name in
             ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc") if total(m, name)]
    for worker in {re.search(r'worker="(\d+)"', k).group(0) for k in m.get("worker_up", {})}:
        rows = {state: sum(v for k, v in m["worker_ledger_rows_total"].items() if worker in k and f'"{state}"' in k)
                for state in ("created", "merged", "cancelled", "lost", "stale")}
        if rows["created"] != rows["merged"] + rows["cancelled"] + rows["lost"]:
            wrong.append(f"{worker}: {rows}")
        again = {state: sum(v for k, v in m["worker_again_rows_total"].items() if worker in k and f'"{state}"' in k)
                 for state in ("asked", "counted", "late", "lost")}
        again["out"] = total(m, "worker_again_rows_out", worker)
        if again["asked"] != again["counted"] + again["late"] + again["lost"] + again["out"]:
            wrong.append(f"{worker}, rows asked of two: {again}")
    return wrong


def await_balance(port, seconds=BALANCE_S):
    """Workers report twice a second: the books count when two looks a second apart agree."""
    end, before, wrong = time.monotonic() + seconds, None, []
    while time.monotonic() < end:
        m = metrics(port)
        wrong, rows = unbalanced(m), m.get("worker_ledger_rows_total")
        if not wrong and rows == before:
            return m
        before = rows
        time.sleep(1)
    raise AssertionError("the books do not balance: " + "; ".join(wrong))


class Stream:
    def __init__(self, number, tokens):
        self.number, self.tokens = number, tokens
        self.kind = {3: "leaver", 7: "slow"}.get(number % 10, "reader")
        self.prompt = PROMPTS[number % len(PROMPTS)]
        self.got, self.text, self.error, self.first_s, self.end_s = 0, "", None, None, None

    async def connect(self, port):
        sock = socket.socket()
        sock.setblocking(False)
        if self.kind == "slow":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=8192)

    def send(self):
        body = json.dumps({"model": "m", "prompt": self.prompt, "max_tokens": self.tokens, "stream": True,
                           "temperature": 0, "ignore_eos": True, "return_token_ids": True})
        # HTTP/1.0: no chunks, the answer ends with the connection
        self.writer.write(f"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
                          f"\r\n{body}".encode())

    async def events(self):
        status = await self.reader.readline()
        while await self.reader.readline() not in (b"\r\n", b""):
            pass
        if b" 200 " not in status:
            raise RuntimeError(f"{status.decode().strip()}: {(await self.reader.read(2000)).decode()}")
        while line := await self.reader.readline():
            if line.startswith(b"data: "):
                yield line[6:].strip()

    async def run(self, began):
        done = False
        async for event in self.events():
            done = event == b"[DONE]"
            if done:
                break
            event = json.loads(event)
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            self.first_s = self.first_s or time.monotonic() - began
            for choice in event["choices"]:
                self.got += len(choice["token_ids"] or []) if "token_ids" in choice else 0
                self.text += choice["text"]
            if self.kind == "leaver" and self.got >= self.tokens // 2:
                self.leave()
                return
            if self.kind == "slow":
                await asyncio.sleep(0.05)
        if not done or self.got != self.tokens:
            raise RuntimeError(f"{self.got} of {self.tokens} tokens, {'done' if done else 'not done'}")

    def leave(self):
        if self.number % 20 == 3:
            self.writer.transport.abort()
        else:
            self.writer.close()

    async def whole(self, began):
        try:
            await self.run(began)
        except Exception as e:  # told at the end, with all others
            self.error = f"stream {self.number} ({self.kind}): {type(e).__name__} {e}"
        self.end_s = time.monotonic() - began
        self.writer.close()


async def all_streams(port, streams):
    gate = asyncio.Semaphore(CONNECTING)

    async def connect(s):
        async with gate:
            await s.connect(port)

    began = time.monotonic()
    await asyncio.gather(*[connect(s) for s in streams])
    connected = time.monotonic() - began
    began = time.monotonic()
    for s in streams:
        s.send()
    await asyncio.gather(*[s.whole(began) for s in streams])
    return connected, time.monotonic() - began


def watch(port, peak, stop):
    """Highest values seen of what grows with the load."""
    while not stop.wait(0.03):
        m = metrics(port)
        for name in ("num_requests_running", "num_requests_waiting", "http_connections", "kv_cache_usage_perc"):
            peak[name] = max(peak.get(name, 0), total(m, name))


def memory_mib(pid, field):
    """VmRSS or VmHWM of a process and its children."""
    pids = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        pids += [int(p) for p in (task / "children").read_text().split()]
    kib = [int(re.search(field + r":\s+(\d+)", pathlib.Path(f"/proc/{p}/status").read_text()).group(1)) for p in pids]
    return [k / 1024 for k in kib]


def raise_file_limit(n):
    """Never lowers it: other tests run in this process, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < n:
        raise RuntimeError(f"{n} open files are needed, the limit is {hard} (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < n:
        resource.setrlimit(resource.RLIMIT_NOFILE, (n, hard))


def run(sluice, model, n, tokens, options):
    """Figures of one run; raises when anything is not as it should be."""
    raise_file_limit(n + 200)
    process, port, log = start(sluice, model, [*options, "--max-connections", str(n + 10), "--queue-timeout", "0",
                                               "--max-queue", str(max(n, 100))])
    try:
        resting = memory_mib(process.pid, "VmRSS")
        streams = [Stream(i, tokens) for i in range(n)]
        peak, stop = {}, threading.Event()
        watcher = threading.Thread(target=watch, args=(port, peak, stop), daemon=True)
        watcher.start()
        connected, seconds = asyncio.run(all_streams(port, streams))
        stop.set()
        watcher.join()
        m = await_balance(port)
        errors = [s.error for s in streams if s.error]
        assert not errors, f"{len(errors)} of {n} streams failed: {errors[:3]}"
        for prompt in range(len(PROMPTS)):
            texts = {s.text for s in streams[prompt::len(PROMPTS)] if s.kind != "leaver"}
            assert len(texts) <= 1, f"prompt {prompt} has {len(texts)} different answers"
        first = sorted(s.first_s for s in streams)
        figures = {"streams": n, "tokens": total(m, "generation_tokens_total"), "connect_s": connected, "s": seconds,
                   "peak_connections": peak.get("http_connections", 0), "peak_running": peak["num_requests_running"],
                   "peak_waiting": peak["num_requests_waiting"], "peak_kv": peak["kv_cache_usage_perc"],
                   "first_token_p50_s": first[n // 2], "first_token_max_s": first[-1],
                   "preempted": total(m, "num_preemptions_total"),
                   "left": total(m, "request_success_total", "abort"),
                   "resting_mib": resting, "peak_mib": memory_mib(process.pid, "VmHWM")}
        figures["tokens_per_s"] = figures["tokens"] / seconds
        process.terminate()
        assert process.wait(30) == 0, "".join(log)
        bad = [line for line in log if re.search(r"Sanitizer|runtime error|assertion", line)]
        assert not bad, bad
        return figures
    finally:
        process.kill()
        process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sluice")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=5000)
    parser.add_argument("--tokens", type=int, default=24)
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, options = arguments[:at], arguments[at + 1:]
    o = parser.parse_args(arguments)
    f = run(o.sluice, o.model, o.streams, o.tokens, options)
    print(f"{f['streams']} streams ({f['left']:g} left half-way), {f['tokens']:g} tokens in {f['s']:.1f} s: "
          f"{f['tokens_per_s']:.0f} tokens/s; connecting took {f['connect_s']:.1f} s")
    print(f"at most {f['peak_connections']:g} connections, {f['peak_running']:g} running, {f['peak_waiting']:g} waiting, "
          f"{100 * f['peak_kv']:.0f} % of the pages, {f['preempted']:g} preemptions; first token after "
          f"{f['first_token_p50_s']:.1f} s (median), {f['first_token_max_s']:.1f} s (last)")
    print("MiB resident, server and workers: at rest " + ", ".join(f"{x:.0f}" for x in f["resting_mib"]) +
          "; peak " + ", ".join(f"{x:.0f}" for x in f["peak_mib"]) + "; the books balance")


if __name__ == "__main__":
    main()
