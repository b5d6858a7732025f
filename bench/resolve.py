#!/usr/bin/env python3
"""What `--resolve` finds while it runs, over the best of fixed schedules: simulated on drawn devices, by the machine that ships.

  bench/resolve.py [--schedule findep] [--devices 12] [--seed 1] [--requests 320] [--sluice build/sluice]

`findep`: one attention and two expert workers, 12 blocks with shared experts, 16 experts of which a row takes 4, 32 requests at once, --exact. For each device
21 fixed schedules run: 1 to 4 lanes; one chunk, 2 and 4 of rows, 2 and 4 of experts; the best of them with AASS, too. A lane has 64 rows. The
resolved run begins with four lanes of four chunks of rows, and its figure has the time in it until it knew better.

`eps`: two colocated workers, 32 experts, 64 requests; the fixed schedules are 1, 2, 4 and 8 groups. Two plans have wrong costs, by which each step goes into one group, or
into all eight; as they are, and resolved."""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "vocab_size": 1000, "hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8,
         "num_key_value_heads": 4, "max_position_embeddings": 512, "intermediate_size": 104, "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": False,
         "moe_intermediate_size": 40, "shared_expert_intermediate_size": 88, "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu", "rms_norm_eps": 1e-6,
         "rope_theta": 1e6, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 995, "eos_token_id": 997}
WORKLOAD = "input: {uniform: [8, 128]}\noutput: {uniform: [32, 192]}\narrival: {closed: 32}\n"
WRONG = {1: {"link": {}, "expert": {"fixed": 100}}, 8: {"link": {"byte": 1}, "expert": {"row": 1000}}}  # groups that costs of a plan lead to
GROUPS = (1, 2, 4, 8)
CHUNKS = [(1, "tokens"), (2, "tokens"), (4, "tokens"), (2, "experts"), (4, "experts")]
DEFAULT, FIRST = (2, 2, "tokens", "asas"), (4, 4, "tokens", "asas")


def device(rng):
    """Of an emulated device: microseconds a task and a row; and its link, microseconds and Gbit/s."""
    def drawn(low, high):
        return round(10 ** rng.uniform(low, high), 3)

    times = {"attention": {"fixed": drawn(0, 2), "row": drawn(-0.5, 1), "floor": 0}, "router": {"row": 0.1},
             "shared": {"fixed": drawn(0, 1.5), "row": drawn(-1, 0.7), "floor": 0},
             "expert": {"fixed": drawn(-0.5, 0.7), "floor": drawn(0, 1.5), "row": drawn(-1, 0.5)}, "head": {"row": 1}}
    return times, f"{drawn(0.5, 2)}:{drawn(0, 1.6)}"


class Simulated:
    def __init__(self, args, folder, times, link):
        (folder / "device.json").write_text(json.dumps(times))
        how = ["--attention", 1, "--experts", 2, "--schedule", "findep", "--max-num-seqs", 32] if args.schedule == "findep" else ["--max-num-seqs", 32]
        self.command = [args.sluice, "simulate", folder, *how, "--device", f"emulated:{folder / 'device.json'}",
                        "--link", link, "--json", "--exact", "--ctx", 512, "--requests", args.requests, "--workload", folder / "workload.yaml"]

    def rate(self, *options):
        done = subprocess.run([str(word) for word in [*self.command, *options]], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["tokens_per_s"]

    def planned(self, folder, **plan):
        workers = [{"roles": ["attention", "expert"]}] * 2
        (folder / "plan.json").write_text(json.dumps({"version": 1, "schedule": "eps", "exact": True, "workers": workers, **plan}))
        return self.rate("--plan", folder / "plan.json")

    def fixed(self, lanes, chunks, by, order):
        return self.rate("--microbatches", lanes, "--chunks", chunks, "--chunk-by", by, "--order", order, "--max-num-batched-tokens", 64 * lanes)


def best_of(s):
    rates = {(lanes, *chunk, "asas"): s.fixed(lanes, *chunk, "asas") for lanes in range(1, 5) for chunk in CHUNKS}
    other = (*max(rates, key=rates.get)[:3], "aass")
    rates[other] = s.fixed(*other)
    return rates, max(rates, key=rates.get)


def resolve_lanes(s, shares):
    rates, best = best_of(s)
    found = s.rate("--microbatches", 4, "--chunks", 4, "--max-num-batched-tokens", 256, "--resolve", 16)
    for name, rate in zip(("findep's default", "where it begins", "resolved"), (rates[DEFAULT], rates[FIRST], found), strict=True):
        shares.setdefault(name, []).append(rate / rates[best])
    return best, rates[best]


def resolve_groups(s, shares, folder):
    rates = {n: s.planned(folder, chunks=n) for n in GROUPS}
    best = max(rates, key=rates.get)
    for n, costs in WRONG.items():
        costs = {stage: {"fixed": 0} for stage in ("attention", "router", "shared", "dense", "head")} | costs
        for name, how in ((f"{n} by wrong costs", {}), (f"{n} resolved", {"resolve": 16})):
            shares.setdefault(name, []).append(s.planned(folder, chunks=8, costs=costs, **how) / rates[best])
    return f"{best} groups", rates[best]


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--schedule", choices=["findep", "eps"], default="findep")
    args.add_argument("--devices", type=int, default=12)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--requests", type=int, default=320)
    args.add_argument("--sluice", type=pathlib.Path, default=ROOT / "build" / "sluice")
    args = args.parse_args()
    rng, shares, eps = random.Random(args.seed), {}, args.schedule == "eps"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "config.json").write_text(json.dumps(MODEL | {"num_experts": 32 if eps else 16}))
        (folder / "workload.yaml").write_text(WORKLOAD.replace("32}", "64}" if eps else "32}"))
        for i in range(args.devices):
            s = Simulated(args, folder, *device(rng))
            best, rate = resolve_groups(s, shares, folder) if eps else resolve_lanes(s, shares)
            print(f"device {i}: best {best} {rate:.0f} tokens/s; " + ", ".join(f"{name} {share[-1]:.3f}" for name, share in shares.items()), flush=True)
    for name, share in shares.items():
        print(f"{name}: median {statistics.median(share):.2f}, mean {statistics.mean(share):.2f}, worst {min(share):.2f}")
    for before, after in (("1 by wrong costs", "1 resolved"), ("8 by wrong costs", "8 resolved")) if eps else (("where it begins", "resolved"),):
        gains = [b / a for a, b in zip(shares[before], shares[after], strict=True)]
        print(f"{after} over {before}: {min(gains):.2f} to {max(gains):.2f}")


if __name__ == "__main__":
    main()
