"""From what bench/peers/run.py measured to claims, the pages docs/performance.md (what holds and what is missed) and docs/lab/peers.md
(what was measured, and how), and the pictures. Only the standard library."""
import os
import platform
import statistics

import gguf_bytes
import roofline

UNIT = {"decode": "tokens/s", "prefill": "tokens/s", "load": "s"}
PAGE = """# Speed beside llama.cpp and ik_llama.cpp{on}

Written by `make bench` (`bench/peers/run.py`); not to be edited. The same GGUF file, 2 threads, the programs in turn. A ratio is the
median of the rounds' own ratios, a limit what memory or arithmetic allows. [lab/peers{end}.md](lab/peers{end}.md) has every measurement with its
range, the machine and the commands.
"""
LAB = """# Lab: speed beside llama.cpp and ik_llama.cpp{on}

Written by `make bench` (`bench/peers/run.py`); not to be edited. What follows from it is in [performance{end}.md](../performance{end}.md).

Every row was measured on the same GGUF file, with
2 threads, the programs in turn (A B A B ...), each run a process of its own. A cell is the median of its
rounds; a ratio is the median of the rounds' own ratios, its range behind it. A limit is what memory (read bandwidth of the
mapped file) or arithmetic (f32 FMA; int8 for quantised weights) allows, both measured before and after the model's
rounds, with the experts that a layer really touched (from a trace); caches and KV are not counted.
"""


def medians(samples):
    return statistics.median(samples) if samples else None


def by_rep(result, engine, test):
    runs = result["engines"].get(engine, {}).get("runs", [])
    return {r["rep"]: r["figures"][test] for r in runs if test in r["figures"]}


def ratios(result, test, over, other="sluice"):
    """other / over by round; more is better for tokens/s, less for seconds."""
    a, b = by_rep(result, other, test), by_rep(result, over, test)
    return [a[rep] / b[rep] for rep in sorted(a) if rep in b]


def number(x):
    if x is None:
        return "-"
    if abs(x) >= 10:
        return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.1f}"
    return f"{x:.2f}" if x == 0 or abs(x) >= 0.1 else f"{x:.4f}"


def claim(rows, name, value, unit, bar, held, **more):
    rows.append({"claim": name, "value": value, "unit": unit, "bar": bar, "held": held, **more})


def line(c):
    word = "" if not c["bar"] else "ok" if c["held"] else "MISSED"
    return f"  {c['claim']:70} {number(c['value']):>9} {c['unit']:10} {c['bar']:28} {word}"


def at_format(bar, model):
    if isinstance(bar, dict):
        return bar.get(model["format"], bar.get(model["size"]))
    return bar


def limit_of(work, model, limits, touched, test):
    """Tokens/s that memory and arithmetic allow."""
    peak = limits["fma_gflops"] * model.get("per_fma", 1) if model["format"] == "BF16" else limits["int8_gops"]
    kind, _, n = test.partition(" ")
    n = int(n)
    if kind == "prefill":
        return n / work.prefill_seconds(n, peak)
    return n / work.decode_seconds(n, touched[str(n)], limits["read_gbs"], peak)


def noise(result):
    runs = [r for e in result["engines"].values() for r in e["runs"]]
    others, steal = [r["others"] for r in runs], [r["steal"] for r in runs]
    return f"{100 * medians(others):.0f} / {100 * max(others):.0f} / {100 * max(steal):.0f}" if runs else "-"


def cell(result, engine, test):
    samples = list(by_rep(result, engine, test).values())
    return f"{number(medians(samples))} ({len(samples)})" if samples else "-"


def ratio_cell(values):
    return f"**{medians(values):.2f}** ({min(values):.2f}-{max(values):.2f})" if values else "-"


def speed_rows(config, group, store, models, claims, out):
    for name, result in store.get(group["group"], {}).items():
        model = config["models"][name]
        work = gguf_bytes.Work(os.path.join(models, model["file"])) if os.path.exists(os.path.join(models, model["file"])) else None
        tests = sorted({t for e in result["engines"].values() for r in e["runs"] for t in r["figures"]},
                       key=lambda t: (t.split()[0], int(t.split()[1])))
        for test in tests:
            bars = config["bars"].get(test, {})
            limit = limit_of(work, model, result["limits"], result["touched"], test) if work else None
            ours = medians(list(by_rep(result, "sluice", test).values()))
            share = ours / limit if ours and limit else None
            for other in ("llama", "ik"):
                values = ratios(result, test, other)
                bar = at_format(bars.get(other), model)
                if not values or bar is None:
                    continue
                near = bars.get("or_limit")
                held = medians(values) >= bar or bool(near and share and share >= near)
                text = f">= {bar}" + (f", or {near} of the limit" if near else "")
                claim(claims, f"{name} {test} / {other}", medians(values), "1", text, held, n=len(values), samples=values,
                      share=share)
            bar = at_format(bars.get("limit"), model)
            if bar is not None and share is not None:
                claim(claims, f"{name} {test} / limit", share, "1", f">= {bar}", share >= bar, n=len(by_rep(result, "sluice", test)))
            touched = f"{result['touched'][test.split()[1]]:.1f}" if test.startswith("decode") else ""
            out.append(f"| {name} | {test} | {cell(result, 'sluice', test)} | {cell(result, 'llama', test)} | {cell(result, 'ik', test)} | "
                       f"{ratio_cell(ratios(result, test, 'llama'))} | {ratio_cell(ratios(result, test, 'ik'))} | {number(limit)} | "
                       f"{'-' if share is None else f'{100 * share:.0f} %'} | {touched} | {noise(result)} |")


def speed_table(config, store, models, claims):
    out = ["## Decode and prefill, tokens/s\n",
           "| model | test | Sluice (n) | llama.cpp | ik_llama.cpp | / llama.cpp | / ik | limit | share | experts a layer | "
           "others %: median / most / steal |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for group in (g for g in config["groups"] if g["kind"] in ("speed", "batch")):
        speed_rows(config, group, store, models, claims, out)
    return out if len(out) > 3 else []


def kv_bytes(work, group):
    tokens = group["job"]["prefill"] + group["job"]["decode"]
    return (tokens + 31) // 32 * 32 * work.kv_bytes


def memory_table(config, store, models, claims):
    out = ["\n## Peak memory, MB\n", "Largest resident set of the process of a prefill test, mapped file included.\n",
           "| model | file | KV | Sluice | over file + KV | llama.cpp | ik_llama.cpp |", "|---|---|---|---|---|---|---|"]
    for group in (g for g in config["groups"] if g["kind"] == "speed" and g["job"]["prefill"]):
        for name, result in store.get(group["group"], {}).items():
            path = os.path.join(models, config["models"][name]["file"])
            if not os.path.exists(path) or "sluice" not in result["engines"]:
                continue
            file, kv = os.path.getsize(path), kv_bytes(gguf_bytes.Work(path), group)
            rss = {e: max(r["rss_bytes"] for r in v["runs"]) for e, v in result["engines"].items()}
            over = rss["sluice"] / (file + kv)
            bar = config["bars"]["memory"]
            claim(claims, f"{name} peak memory / (file + KV)", over, "1", f"<= {bar}", over <= bar)
            mb = [number(rss[e] / 1e6) if e in rss else "-" for e in ("sluice", "llama", "ik")]
            out.append(f"| {name} | {number(file / 1e6)} | {number(kv / 1e6)} | {mb[0]} | {over:.3f} | {mb[1]} | {mb[2]} |")
    return out if len(out) > 4 else []


def load_table(config, store, claims):
    out = ["\n## Load and first token, warm file cache, s\n", "Wall time of a process that loads the file and computes one token.\n",
           "| model | Sluice | llama.cpp | ik_llama.cpp | / llama.cpp | others %: median / most / steal |", "|---|---|---|---|---|---|"]
    for group in (g for g in config["groups"] if g["kind"] == "load"):
        for name, result in store.get(group["group"], {}).items():
            values, bar = ratios(result, "load", "llama"), config["bars"]["load"]["llama"]
            if values:
                claim(claims, f"{name} load and first token / llama", medians(values), "1", f"<= {bar}", medians(values) <= bar,
                      n=len(values), samples=values)
            cells = " | ".join(cell(result, e, "load") for e in ("sluice", "llama", "ik"))
            out.append(f"| {name} | {cells} | {ratio_cell(values)} | {noise(result)} |")
    return out if len(out) > 4 else []


def two_table(config, store, claims):
    out = ["\n## Two processes with a core each, batch 16, tokens/s\n",
           "| model | one process, 2 threads | 2 colocated workers | attention + expert worker | llama.cpp, 2 RPC servers | "
           "colocated / RPC | colocated / one process | split: time over the busier core's | others %: median / most / steal |",
           "|---|---|---|---|---|---|---|---|---|"]
    for group in (g for g in config["groups"] if g["kind"] == "two"):
        for name, result in store.get(group["group"], {}).items():
            test, bars = f"decode {group['job']['batches'][0]}", config["bars"]
            found = {}
            for over in ("rpc", "sluice"):
                found[over] = values = ratios(result, test, over, "two")
                if values:
                    claim(claims, f"{name} two workers / {over}", medians(values), "1", f">= {bars['two'][over]}",
                          medians(values) >= bars["two"][over], n=len(values), samples=values)
            over = list(by_rep(result, "split", f"over busier core {group['job']['batches'][0]}").values())
            if over:
                claim(claims, f"{name} attention + expert worker, time over the busier core's", medians(over), "1",
                      f"<= {bars['split']}", medians(over) <= bars["split"], n=len(over), samples=over)
            cells = " | ".join(cell(result, e, test) for e in ("sluice", "two", "split", "rpc"))
            out.append(f"| {name} | {cells} | {ratio_cell(found['rpc'])} | {ratio_cell(found['sluice'])} | {ratio_cell(over)} | "
                       f"{noise(result)} |")
    return out if len(out) > 3 else []


def kernel_table(config, store, claims, end=""):
    """Expert products of 8 to 256 rows, and attention over long contexts."""
    if "kernels" not in store:
        return [], {}
    found, (peak, gbs) = roofline.points(store["kernels"]["csv"])
    out = ["\n## Kernels\n", f"![Kernels under the roof](../img/roofline{end}.svg)\n",
           f"`build/bench_kernels`, 2 threads, medians of {store['kernels']['rounds']} rounds; {peak:.0f} GFLOP/s f32 and "
           f"{gbs:.1f} GB/s in the same rounds; other programs took {100 * store['kernels']['others']:.0f} % of the cores.\n",
           "| kernel | shape | GFLOP/s | GB/s | share of the roof |", "|---|---|---|---|---|"]
    for series, shape, per_byte, gflops, row in found:
        share = gflops / min(peak, gbs * per_byte)
        rows = int(shape.rpartition("rows")[2].split()[0])
        out.append(f"| {row['kernel']} | {shape} | {number(gflops)} | {row['gbs']} | {100 * share:.0f} % |")
        if row["kernel"] == "gemm_swiglu" and 8 <= rows <= 256:
            bar = config["bars"]["experts"]
            claim(claims, f"experts, {shape} / roof", share, "1", f">= {bar}", share >= bar)
        if row["kernel"] == "attention" and rows == 1 and shape.endswith(("from8191", "from32767")):
            bar = config["bars"]["attention"]
            claim(claims, f"attention, {shape} / roof", share, "1", f">= {bar}", share >= bar)
    return out, {f"roofline{end}.svg": roofline.svg(store["kernels"]["csv"])}


def quality_table(config, store, claims):
    out = ["\n## Perplexity on one text\n", "A piece of `tests/golden/corpus.txt` in chunks of 512 tokens, second halves, the same "
           "file in both programs. Random weights have a figure, too; only equality counts there.\n",
           "| model | Sluice | llama.cpp | difference |", "|---|---|---|---|"]
    for name, r in store.get("quality", {}).items():
        if "llama" in r:
            off, bar = abs(r["sluice"] / r["llama"] - 1), config["bars"]["perplexity"]
            claim(claims, f"{name} perplexity, difference from llama", off, "1", f"<= {bar}", off <= bar)
        out.append(f"| {name} | {r['sluice']:.4f} | {r.get('llama', '-')} | {f'{100 * off:.2f} %' if 'llama' in r else '-'} |")
    return out if len(out) > 4 else []


def cpu_name():
    try:
        with open("/proc/cpuinfo") as f:
            return next(text.split(":")[1].strip() for text in f if text.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def conditions(config, store):
    """Versions, commands, limits."""
    versions, commands, limits = {}, [], []
    for group in config["groups"]:
        for name, r in store.get(group["group"], {}).items() if group["kind"] not in ("kernels",) else ():
            for e in r.get("engines", {}).values():
                versions.setdefault(e["label"], e["version"])
                for command in e["runs"][-1]["command"]:
                    commands.append((group["group"], name, command))
            if "limits" in r:
                most = r["limits"]
                limits.append(f"| {group['group']} | {name} | {most['read_gbs']:.1f} | {most['fma_gflops']:.0f} | {most['int8_gops']:.0f} | "
                              f"{100 * r.get('huge', 0):.0f} % | {r['load']:.1f} |")
            commands += [("quality", name, c) for c in r.get("command", [])]
    if "kernels" in store:
        commands.append(("kernels", "", store["kernels"]["command"]))
    out = ["\n## Conditions\n", f"{cpu_name()}, {os.cpu_count()} virtual cores, Linux {platform.release()}. "
           "Programs: " + ", ".join(f"{k} {v}" for k, v in versions.items()) + ". ik_llama.cpp repacks weights at load where it can "
           "(`-rtr`); its batched test draws random tokens as llama.cpp's does. Before a model's rounds `sluice warm` puts its file into "
           "the file cache, in pages of 2 MB: for all programs, as far as they map it.\n",
           "| group | model | read GB/s | f32 GFLOP/s | int8 GOP/s | in 2 MB pages | load average at its start |", "|---|---|---|---|---|---|---|", *limits,
           "\nEach group's commands, of its last round; groups, rounds and bars are in `bench/peers/config.json`.\n"]
    seen = set()
    for group, name, command in commands:
        text = " ".join(os.path.basename(w) if w.startswith("/") else w for w in command.split())
        key = (group, text)
        if key not in seen:
            seen.add(key)
            out.append(f"- {group}: `{text}`")
    return out


def briefly(speed):
    """The columns of the table of speed that say how fast, and beside whom."""
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in speed[3:]]
    out = ["## Decode and prefill, tokens/s\n", "| model | test | Sluice | / llama.cpp | / ik_llama.cpp | of the limit |",
           "|---|---|---|---|---|---|"]
    return out + [f"| {' | '.join([r[0], r[1], *(r[i].split(' (')[0] for i in (2, 5, 6)), r[8]])} |" for r in rows]


def bars(claims, held):
    """Those that are held, or missed. Where a bar has two parts, one of them is enough."""
    rows = [f"| {c['claim']} | {number(c['value'])} | {c['bar']} |" for c in claims if bool(c["held"]) == held]
    out = [f"\n## Bars that are {'held' if held else 'missed'}\n", "| claim | value | bar |", "|---|---|---|"]
    return out + rows if rows else []


def others(config, machine):
    """Links to the pages of other machines."""
    names = {"": "AVX2"} | config["machines"]
    return "On other machines: " + ", ".join(f"[{what}](performance{name and '-' + name}.md)" for name, what in names.items()
                                             if name != machine) + ".\n"


def make(config, store, models, machine=""):
    """(claims, {page: text}, {name: svg}). machine: one of the configuration's, which has pages and bars of its own."""
    claims, end, on = [], machine and "-" + machine, ""
    if machine:
        on = f": {config['machines'][machine]}"
        config = config | {"bars": config["bars"] | config["machine_bars"]}
    speed = speed_table(config, store, models, claims)
    memory = memory_table(config, store, models, claims)
    load, two = load_table(config, store, claims), two_table(config, store, claims)
    kernels, pictures = kernel_table(config, store, claims, end)
    parts = speed + load + memory + two + kernels + quality_table(config, store, claims)
    lab = [LAB.format(end=end, on=on), *(parts if claims else ["Nothing has been measured yet."]), *conditions(config, store)]
    page = [PAGE.format(end=end, on=on), others(config, machine), *briefly(speed), *bars(claims, False), *bars(claims, True)]
    return claims, {f"performance{end}.md": "\n".join(page) + "\n", f"lab/peers{end}.md": "\n".join(lab) + "\n"}, pictures
