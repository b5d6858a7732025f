"""Runs a program and says what it took and what else used the machine meanwhile. Only the standard library."""
import os
import subprocess
import tempfile
import time

TICK = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """The program ended with an error, or printed no figure."""


def cpu_times():
    """Seconds of all CPUs since boot: (busy, stolen, all)."""
    with open("/proc/stat") as f:
        t = [int(x) / TICK for x in f.readline().split()[1:9]]
    user, nice, system, idle, iowait, irq, softirq, steal = t
    return user + nice + system + irq + softirq, steal, sum(t)


def cpu_of(pids):
    """CPU seconds of processes that still run."""
    total = 0.0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as f:
                fields = f.read().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / TICK
        except OSError:
            pass
    return total


def own_cpu():
    """This process and its children that ended."""
    return sum(os.times()[:4])


class Run:
    """One run: out, err; wall_s, cpu_s, rss_bytes (largest of a process of its own); others, steal: shares of
    all CPUs while it ran."""

    def __init__(self, argv, timeout_s=600, env=None, beside=()):
        before, own, servers = cpu_times(), own_cpu(), cpu_of(beside)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            begin = time.monotonic()
            child = subprocess.Popen(argv, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                                     env={**os.environ, **(env or {})})
            usage = self._wait(child, begin + timeout_s)
            self.wall_s = time.monotonic() - begin
            for name, f in (("out", out), ("err", err)):
                f.seek(0)
                setattr(self, name, f.read().decode(errors="replace"))
        after = cpu_times()
        mine = own_cpu() - own + cpu_of(beside) - servers
        every = max(after[2] - before[2], 1e-9)
        self.argv, self.status = argv, child.returncode
        self.cpu_s = usage.ru_utime + usage.ru_stime
        self.rss_bytes = usage.ru_maxrss * 1024
        self.others = max(0.0, (after[0] - before[0] - mine) / every)
        self.steal = (after[1] - before[1]) / every
        if self.status != 0:
            tail = (self.err or self.out).strip().split("\n")[-1]
            raise Failed(f"{os.path.basename(argv[0])}: status {self.status}: {tail}")

    def _wait(self, child, until):
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                child.returncode = os.waitstatus_to_exitcode(status)
                return usage
            if time.monotonic() > until:
                child.kill()
                _, status, usage = os.wait4(child.pid, 0)
                child.returncode = os.waitstatus_to_exitcode(status)
                return usage
            time.sleep(0.005)
