"""Figures of recorded experiments, and the closed forms they are held against (bench/schedules.py).

A Run is one experiment: what bench/lab/run.py printed, and its trace. Times are milliseconds. Stage
times are kernel time alone, so what packing, sending and scheduling cost counts against a schedule
and not for its law. Only the standard library."""
import json
import statistics
import subprocess

ATTENTION_KERNELS = ("attention", "router", "shared", "branch", "dense")


class Run:
    def __init__(self, result, trace, program):
        self.result, self.trace, self.program = result, trace, program
        self._read = None

    def events(self):
        """Spans that end in the measurement, as (worker, row, category, name, begin, length, args);
        where the recording began later than the measurement, only what ends after that."""
        if self._read is None:
            with open(self.trace) as f:
                recorded = json.load(f)
            other = recorded["otherData"]
            spans = [e for e in recorded["traceEvents"] if e["ph"] == "X"]
            kept_from = [min(e["ts"] for e in spans if e["pid"] == w["id"]) for w in other["workers"] if w["dropped"]]
            begin, end = ((self.result[key] - other["origin_ns"]) / 1e6 for key in ("begin_ns", "end_ns"))
            self.layers = other["layers"]
            self.window_ms = max([begin] + [ts / 1000 for ts in kept_from]), end
            self._read = [(e["pid"], e["tid"], e["cat"], e["name"], e["ts"] / 1000, e["dur"] / 1000, e["args"])
                          for e in spans if self.window_ms[0] <= (e["ts"] + e["dur"]) / 1000 < self.window_ms[1]]
        return self._read

    def stats(self):
        self.events()
        argv = [self.program, "trace", self.trace, "--stats", "--json"]
        for option, ms in zip(("--from", "--to"), self.window_ms):
            argv += [option, f"{ms:.3f}"]
        return json.loads(subprocess.check_output(argv, text=True))

    def lengths(self, category, name):
        return [e[5] for e in self.events() if e[2] == category and e[3] == name]

    def layer_ms(self):
        """Time of one layer: a step over its layers."""
        return statistics.median(self.lengths("lane", "step")) / self.layers

    def stages(self):
        """(Ta, Te, Tout, Tback): medians of one micro-batch's attention, experts, dispatch and return."""
        ta = sum(statistics.median(v) for v in (self.lengths("execute", n) for n in ATTENTION_KERNELS) if v)
        te = statistics.median(self.lengths("execute", "expert"))
        transfer = {"DISPATCH": [], "RETURN": []}
        for _, _, category, name, _, _, args in self.events():
            if category == "link" and name in transfer and args["rows"]:
                transfer[name].append(args["latency_us"] / 1000)
        return ta, te, statistics.median(transfer["DISPATCH"]), statistics.median(transfer["RETURN"])


# ---- closed forms, ms a layer ----

def sequential_law(ta, te, out, back):
    return ta + te + out + back


def lanes_law(ta, te, out, back, m):
    """MegaScale-Infer, period of one layer for all m micro-batches."""
    return max(m * max(ta, te), ta + te + out + back)


def findep_law(ta, te, out, back, r1, r2):
    """FinDEP without shared experts, period of one layer for r1 micro-batches of r2 chunks each."""
    c, d, e = out / r2, back / r2, te / r2
    y = max(c, d, e)
    f = max(ta, r2 * y)
    return max(ta + c + e + d + (r2 - 1) * y, r1 * f)


def groups_law(ta, te, out, back, n):
    """EPS-MoE on two colocated workers: dispatch and return share each direction of the link."""
    return ta + out / n + max(te, out + back) + back / n


# ---- figures: of one repetition; `runs` has a Run by side, `row` the claim's fields ----

def metric_of(run, metric):
    value = run.result
    for key in metric.split("."):
        value = value[key]
    return value


def ratio(row, runs):
    """One side's metric over another's."""
    over, base = row["of"]
    return metric_of(runs[over], row["metric"]) / metric_of(runs[base], row["metric"])


def plain(row, runs):
    return metric_of(runs[row["of"][0]], row["metric"])


def over_sequential_law(row, runs):
    """Time of a layer over Ta + Te + 2 Tc."""
    run = runs[row["of"][0]]
    return run.layer_ms() / sequential_law(*run.stages())


def share_of_lanes_law(row, runs):
    run = runs[row["of"][0]]
    return lanes_law(*run.stages(), row["m"]) / run.layer_ms()


def share_of_groups_law(row, runs):
    """The law of the grouped run (first) by the stage times of the other."""
    grouped, solo = (runs[side] for side in row["of"])
    return groups_law(*solo.stages(), row["n"]) / grouped.layer_ms()


def findep_model(row, runs):
    """How much faster the first side should be than the second, by the stage times of `stages_of`.

    `over` and `base`: [r1, r2, share of the stage times]; a micro-batch half as large has share 0.5.
    """
    stages = runs[row["stages_of"]].stages()

    def rows_per_ms(r1, r2, share):
        return r1 * share / findep_law(*(share * t for t in stages), r1, r2)

    return rows_per_ms(*row["over"]) / rows_per_ms(*row["base"])


def share_of_findep_model(row, runs):
    return ratio(row, runs) / findep_model(row, runs)


def share_of_findep_gain(row, runs):
    """The gain alone: 1.27x where the model has 1.30x is 0.9 of it."""
    return (ratio(row, runs) - 1) / (findep_model(row, runs) - 1)


def critical_worker(stats):
    return max(stats["workers"], key=lambda w: w["busy_share"])


def kernel_share(row, runs):
    """Kernel time over wall time on the busiest worker."""
    worker = critical_worker(runs[row["of"][0]].stats())
    return worker["execute_ms"] / worker["recorded_ms"]


def busy_share(row, runs):
    """Kernel, packing and sending over wall time on the busiest worker."""
    return critical_worker(runs[row["of"][0]].stats())["busy_share"]


def imbalance_bound(row, runs):
    """What no barrier can gain: sum over layers of the busier worker over the busier worker's sum."""
    run = runs[row["of"][1]]
    by_layer, total = {}, {}
    for worker, _, category, _, _, length, args in run.events():
        if category == "execute":
            layer = by_layer.setdefault(args.get("layer", -1), {})
            layer[worker] = layer.get(worker, 0) + length
            total[worker] = total.get(worker, 0) + length
    return sum(max(layer.values()) for layer in by_layer.values()) / max(total.values())


def share_of_imbalance_bound(row, runs):
    return ratio(row, runs) / imbalance_bound(row, runs)


def fabric_cpu(row, runs):
    """Processor time over emulated kernel time, of the worker where it is largest."""
    return max(w["cpu"] / w["execute"] for w in runs[row["of"][0]].result["workers"])


def task_us(row, runs):
    """What the attention side does around one block's kernels: pick, merge, dispatch, send, poll.

    Tasks of `rows` rows, from one attention kernel to the next, when nothing was waited for."""
    least, most = row["rows"]
    costs = []
    open_task = {}
    for worker, tid, category, name, _, length, args in runs[row["of"][0]].events():
        if tid != 0 or category == "link":
            continue
        if name == "attention":
            if worker in open_task and open_task[worker] is not None:
                costs.append(1000 * open_task[worker])
            open_task[worker] = 0.0 if least <= args["rows"] <= most else None
        elif name in ("head", "embed") or category in ("wait", "idle"):
            open_task[worker] = None
        elif category in ("pack", "send", "poll") and open_task.get(worker) is not None:
            open_task[worker] += length
    return statistics.median(costs)


FIGURES = {f.__name__: f for f in (
    ratio, plain, over_sequential_law, share_of_lanes_law, share_of_groups_law, findep_model, share_of_findep_model,
    share_of_findep_gain,     kernel_share, busy_share, imbalance_bound, share_of_imbalance_bound, fabric_cpu, task_us)}
