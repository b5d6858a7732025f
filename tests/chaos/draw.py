"""What a seed stands for: a deployment, requests and faults. Drawing is pure: the same seed and kinds of faults give
the same schedule on every machine, whatever runs there."""

import dataclasses
import random
import re

FIXTURES = {"qwen3moe-tiny": (3, 1000), "qwen2moe-tiny": (3, 980), "mixtral-tiny": (4, 1000)}  # MoE blocks, ids that are text
EXPERTS = 8
SCHEDULES = {"ep": "together", "dep": "apart", "pingpong": "any", "findep": "any", "eps": "together", "aep": "any"}
CONTEXT, PAGE = 384, 32

# Every kind of fault -> what happens.
KINDS = {
    "kill": "SIGKILL of a worker, or of one of its ranks",
    "stop": "SIGSTOP of a worker for 0.2 to 3 s, at times 9 s, then SIGCONT",
    "together": "SIGKILL or SIGSTOP of two workers up to all at the same moment",
    "again": "SIGKILL of a worker, and of any worker up to 0.8 s later: while the first one is being recovered from",
    "loop": "SIGKILL of a worker 3 or 4 times, each time as soon as it is there again",
    "idle": "SIGKILL of a worker while no request is open, then requests",
    "hang": "SIGSTOP of a worker for longer than --silence-limit, of which nobody but the limit says anything",
    "slow": "a worker gets a twentieth of its time for 0.5 to 2 s: SIGSTOP and SIGCONT by turns",
    "pause": "SIGSTOP of the coordinator for 0.2 to 5 s",
    "cut": "shutdown of the connection of two workers, or of a worker and the coordinator (tcp)",
    "silence": "nothing passes between two workers for 0.3 to 4 s; 2 s are taken for a death (tcp)",
    "thin": "the connection of two workers passes 20 KB a second for 1 to 3 s (tcp)",
    "corrupt": "bytes of noise in the connection of two workers, or of a worker and the coordinator (tcp)",
    "drain": "a worker is told to leave; 0 to 1.5 s later it is wanted again, wherever it has got to, or at the end; at times it is killed meanwhile",
    "join": "a worker that left before the first request comes",
    "restart": "a worker is told to restart; at times several at once, or all, one after another",
}

# Kinds and transports that the engine cannot stand yet -> why. They are drawn only when asked for (--kinds, --transports).
NOT_YET = {}

RELAYED = {"silence", "thin"}  # connections of workers have to pass tests/relay.py
TCP = RELAYED | {"cut", "corrupt"}
COORDINATOR = -1


def name(worker):
    return "coordinator" if worker == COORDINATOR else str(worker)


@dataclasses.dataclass
class Strike:
    """At a share of all tokens (1: after the last one), or `after` seconds behind the strike before it."""
    action: str  # of faults.ACTIONS
    worker: int  # of the plan, or COORDINATOR
    at: float | None = None
    after: float = 0.0
    seconds: float = 0.0  # of drain and restart: that requests have to end there
    peer: int | None = None  # whose connection with the worker is struck

    def __str__(self):
        whom = [name(w) for w in (self.worker, self.peer) if w is not None]
        when = f"at {100 * self.at:.0f} %" if self.at is not None else f"{self.after:.2f} s later"
        return f"{self.action} {'-'.join(whom)}{f' for {self.seconds:.1f} s' if self.seconds else ''} {when}"


@dataclasses.dataclass
class Request:
    path: str
    body: dict
    cancel_after: int | None  # the client leaves when so many tokens have come

    def __str__(self):
        b = self.body
        leaves = f", leaves after {self.cancel_after}" if self.cancel_after else ""
        prompt = f"{len(b['prompt'])} ids" if "prompt" in b else f"{len(b['messages'][0]['content'])} bytes"
        return (f"{self.path.split('/', 2)[2]}: {prompt}, {b['max_tokens']} tokens, n {b['n']}, "
                f"temperature {b['temperature']}{leaves}")


@dataclasses.dataclass
class Schedule:
    seed: int
    fixture: str
    options: list
    popularity: list | None  # rows of each expert, for --placement replicas
    exact: bool
    kept: bool  # requests have keys, and are asked again at the end: what was sent is what is kept
    at_once: int
    requests: list
    kinds: list
    strikes: list
    machines: list  # ranks of each worker that wait at addresses of their own (RANKS in options); empty: none do

    @property
    def covered(self):
        """Each expert is on several workers."""
        return any(re.fullmatch(r"replicas:\d+", o) for o in self.options)

    def __str__(self):
        leave = sum(r.cancel_after is not None for r in self.requests)
        return (f"{self.fixture} {' '.join(self.options)}; {len(self.requests)} requests, {self.at_once} at once, {leave} leave; "
                f"{'+'.join(self.kinds) or 'no faults'}: {', '.join(map(str, self.strikes))}")


def draw_deployment(rng, transports):
    """Options of serve, and how many workers there are of each role; no expert workers: all do both."""
    schedule = rng.choice(list(SCHEDULES))
    together = SCHEDULES[schedule] == "together" or (SCHEDULES[schedule] == "any" and rng.random() < 0.4)
    attention, experts = (rng.randint(2, 4), 0) if together else (rng.randint(1, 3), rng.randint(1, 3))
    options = ["--schedule", schedule, "--attention", attention, "--transport", rng.choice(transports), "--threads", 1]
    options += ["--experts", experts] if experts else []
    options += ["--ctx", CONTEXT, "--max-num-seqs", rng.randint(3, 12), "--max-num-batched-tokens", rng.choice([16, 48, 128])]
    if rng.random() < 0.7:  # few pages: requests give way to others and are computed again
        options += ["--kv-pages", CONTEXT // PAGE + rng.randint(0, 12)]
    if schedule in ("pingpong", "findep"):
        options += ["--microbatches", rng.randint(2, 3)]
    if schedule == "findep":
        options += ["--chunks", 2, "--chunk-by", rng.choice(["tokens", "experts"]), "--order", rng.choice(["asas", "aass"])]
        if not together and rng.random() < 0.5:
            options += ["--resolve", rng.choice([1, 4])]
    if schedule == "eps":
        options += ["--groups", rng.choice([2, 4])]
    if schedule == "aep":
        options += ["--policy", rng.choice(["defrag", "mtfs", "flfs", "rmf"])]
    if rng.random() < 0.15:
        options += ["--progress", "thread"]
    return [str(o) for o in options], attention, experts


def draw_placement(rng, blocks, hosts):
    """Options, and the popularity that they read."""
    kind = rng.random()
    if hosts > 1 and kind < 0.4:
        copies = rng.choice([1, 2, EXPERTS])  # EXPERTS: room for every expert at every worker
        return ["--placement", f"replicas:POPULARITY:{copies}"], [[rng.randint(1, 100) for _ in range(EXPERTS)] for _ in range(blocks)]
    return (["--placement", "round-robin"] if kind < 0.6 else []), None


def beside(what, seed, share):
    """Whether a seed has this too: from a source of its own, so that what else the seed stands for stays what it was."""
    return random.Random(f"{what} {seed}").random() < share


def draw_cover(seed, hosts):
    """Each expert on several workers, so that any one of them can be done without: options of --placement, or none. Popularity
    (draw_placement) gives replicas to a few experts, which covers nobody."""
    rng = random.Random(f"cover {seed}")
    return ["--placement", f"replicas:{rng.randint(2, hosts)}"] if hosts > 1 and rng.random() < 0.5 else []


def draw_gangs(seed, experts):
    """Options by which workers are gangs of two ranks: threads, or processes that may be struck; or pipelines of two."""
    if not beside("gangs", seed, 0.2):
        return ["--pp", "2"] if beside("pipelines", seed, 0.15) else []
    rng = random.Random(f"gangs of {seed}")
    return [rng.choice(["--tp", "--attention-tp", "--expert-tp"] if experts else ["--tp"]), "2",
            "--tp-ranks", rng.choice(["processes", "processes", "threads"])]


def draw_rails(seed, options, relayed):
    """Half of the deployments with schedule ep are gangs with rails instead (hybrid); rails do not pass a relay. Options of these gangs, or none."""
    if options[options.index("--schedule") + 1] != "ep" or relayed or not beside("rails", seed, 0.5):
        return []
    rng = random.Random(f"rails of {seed}")
    options[options.index("--schedule") + 1] = "hybrid"
    return ["--tp", "2", "--tp-ranks", rng.choice(["processes", "threads"]), "--rail-bytes", str(rng.choice([1, 1, 4000]))]


def draw_machines(seed, gangs, attention, experts):
    """Half of the gangs of processes, and of the pipelines, have ranks on machines instead: options, and how many ranks of each worker wait there."""
    if not ("processes" in gangs or "--pp" in gangs) or not beside("machines", seed, 0.5):
        return gangs, []
    whose = {"--attention-tp": (1, 0), "--expert-tp": (0, 1)}.get(gangs[0], (1, 1))
    return [*gangs[:2], "--rank-hosts", "RANKS", *gangs[4:]], [whose[0]] * attention + [whose[1]] * experts


def strike_ranks(seed, options, strikes):
    """Where ranks are processes, every other kill is of a rank of that worker, if it has any."""
    rng = random.Random(f"ranks of {seed}")
    for strike in strikes:
        if strike.action == "kill" and ("processes" in options or "RANKS" in options) and rng.random() < 0.5:
            strike.action = "rank"
    return strikes


def draw_sides(seed, options, attention, experts):
    """Options by which workers of their own compute prompts of two pages and more, and how many workers these are."""
    if not beside("sides", seed, 0.2):
        return [], 0
    rng = random.Random(f"sides of {seed}")
    shares = not experts or (options[options.index("--schedule") + 1] == "aep" and rng.random() < 0.5)
    sides = ["--prefill", str(rng.randint(1, 2)), *([] if shares else ["--prefill-experts", str(rng.randint(1, 2))])]
    return [*sides, "--prefill-rows", str(rng.choice([32, 64]))], sum(map(int, sides[1::2]))


def draw_growth(seed, attention, experts):
    """Options, and the strike by which a worker comes for whom the plan of the start has a free place."""
    if not beside("growth", seed, 0.1):
        return [], []
    place = ["--max-experts", experts + 1] if experts else ["--max-attention", attention + 1]
    at = round(random.Random(f"grows {seed}").uniform(0.08, 0.6), 3)
    return [str(o) for o in place], [Strike("join", attention + experts, at)]


def draw_request(rng, vocabulary, exact):
    n_prompt, n_tokens = rng.choice([1, 5, 20, 70, 140]), rng.randint(8, 60) if rng.random() < 0.3 else rng.randint(60, 220)
    body = {"prompt": [rng.randrange(3, vocabulary) for _ in range(rng.randint(1, n_prompt))], "max_tokens": n_tokens,
            "n": 2 if rng.random() < 0.15 else 1, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    if rng.random() < 0.6:
        body |= {"temperature": round(rng.uniform(0.4, 1.4), 2), "seed": rng.randrange(1 << 32),
                 "top_p": rng.choice([1, 0.9]), "top_k": rng.choice([0, 5, 40]), "min_p": rng.choice([0, 0.05])}
    if rng.random() < 0.25:
        body |= {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
    if exact and rng.random() < 0.2:  # may end early
        body |= {"ignore_eos": False, "stop": [rng.choice(["th", "e ", "on"])], "min_tokens": min(rng.randint(0, 40), n_tokens)}
    chat = rng.random() < 0.2
    if chat:
        body.pop("prompt")
        body["messages"] = [{"role": "user", "content": " ".join(rng.choice(["sea", "why", "salt", "rain", "sky", "is", "the"])
                                                                  for _ in range(rng.randint(1, 30)))}]
    if rng.random() < 0.7:
        body |= {"logprobs": True, "top_logprobs": rng.randint(0, 3)} if chat else {"logprobs": rng.randint(0, 3)}
    body["stream"] = rng.random() < 0.9
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    leaves = body["stream"] and body["ignore_eos"] and rng.random() < 0.2
    return Request("/v1/chat/completions" if chat else "/v1/completions", body, rng.randint(1, n_tokens - 1) if leaves else None)


def connections(attention, experts):
    """Pairs of those who are connected: expert workers among each other only with the sequencer."""
    n = attention + experts
    if not experts:
        return [(COORDINATOR, w) for w in range(n)] + [(a, b) for b in range(n) for a in range(b)]
    return ([(COORDINATOR, w) for w in range(n)] + [(a, e) for a in range(attention) for e in range(attention, n)]
            + [(attention, e) for e in range(attention + 1, n)])


def draw_kind(rng, kind, attention, experts):
    """The strikes of one fault."""
    n_workers = attention + experts
    one, at = rng.randrange(n_workers), round(rng.uniform(0.08, 0.75), 3)

    def stop():
        how_long = rng.random()
        return {"action": "stop", "seconds": 9.0 if how_long < 0.03 else round(rng.uniform(0.2, 3 if how_long < 0.3 else 0.8), 1)}

    if kind == "kill":
        return [Strike("kill", one, at)]
    if kind == "stop":
        return [Strike(worker=one, at=at, **stop())]
    if kind == "together":
        some = rng.sample(range(n_workers), rng.randint(min(2, n_workers), n_workers))
        return [Strike(worker=w, at=at, **(stop() if rng.random() < 0.25 else {"action": "kill"})) for w in some]
    if kind == "again":
        return [Strike("kill", one, at), Strike("kill", rng.randrange(n_workers), after=round(rng.uniform(0, 0.8), 2))]
    if kind == "loop":
        return [Strike("kill", one, at)] + [Strike("kill", one, after=0) for _ in range(rng.randint(2, 3))]
    if kind == "idle":
        return [Strike("kill", one, 1.0)]
    if kind == "hang":
        return [Strike("stop", one, at, seconds=4.0)]
    if kind == "slow":
        return [Strike("slow", one, at, seconds=round(rng.uniform(0.5, 2), 1))]
    if kind == "pause":
        return [Strike("stop", COORDINATOR, at, seconds=round(rng.uniform(0.2, 5), 1))]
    if kind == "drain":
        grace = rng.choice([0, 0.2, 2.0])
        between = [Strike("kill", one, after=round(rng.uniform(0, 0.3), 2))] if rng.random() < 0.25 else []
        back = [Strike("join", one, after=round(rng.uniform(0, 1.5), 2))] if rng.random() < 0.8 else []
        return [Strike("drain", one, at, seconds=grace), *between, *back]
    if kind == "join":
        return [Strike("drain", one, 0.0), Strike("join", one, at)]
    if kind == "restart":
        grace, how_many = rng.choice([0, 0.2]), rng.random()
        if how_many < 0.4:
            return [Strike("roll", one, at, seconds=grace)]
        some = rng.sample(range(n_workers), rng.randint(1, n_workers)) if how_many < 0.7 else [one]
        return [Strike("restart", w, at, seconds=grace) for w in some]
    if kind in TCP:
        among = [c for c in connections(attention, experts) if kind not in RELAYED or COORDINATOR not in c]
        seconds = {"silence": rng.uniform(0.3, 4), "thin": rng.uniform(1, 3)}.get(kind, 0)
        peer, worker = rng.choice(among)
        return [Strike(kind, worker, at, peer=peer, seconds=round(seconds, 1))]
    raise ValueError(f"no kind {kind}; there are {', '.join(KINDS)}")


def in_order(faults):
    """Strikes of all faults by the time at which they are due; what comes `after` one stays behind it."""
    groups = []
    for strike in (s for fault in faults for s in fault):
        if strike.at is None:
            groups[-1].append(strike)
        else:
            groups.append([strike])
    groups.sort(key=lambda g: g[0].at)
    return [s for g in groups for s in g]


def draw(seed, kinds, transports):
    """`kinds` are those that may strike, one to three a schedule; none: the same deployment and requests, left in peace."""
    rng = random.Random(f"chaos {seed}")
    fixture = rng.choice(list(FIXTURES))
    blocks, vocabulary = FIXTURES[fixture]
    options, attention, experts = draw_deployment(rng, transports)
    placement, popularity = draw_placement(rng, blocks, experts or attention)
    exact = rng.random() < 0.85
    requests = [draw_request(rng, vocabulary, exact) for _ in range(rng.randint(8, 20))]
    at_once = rng.randint(3, 8)
    drawn = [rng.choice(kinds) for _ in range(rng.choice([1, 1, 2, 3]))] if kinds else []
    struck = [draw_kind(rng, k, attention, experts) for k in drawn]
    limit = ["--silence-limit", "2"] if "hang" in drawn else []
    copies = ["--kv-replicas", "1"] if attention > 1 and beside("copies", seed, 0.4) else []
    checks = ["--checksums", "on"] if beside("checksums", seed, 0.3) else []
    hidden = ["--encrypt", "on"] if beside("encrypted", seed, 0.4) else []
    guesses = ["--speculate", "always"] if exact and beside("guesses", seed, 0.3) else []
    if cover := draw_cover(seed, experts or attention):
        placement, popularity = cover, None
    place, grows = draw_growth(seed, attention, experts) if kinds else ([], [])
    kept = not exact and beside("kept", seed, 0.6)
    keeps = ["--responses", "1000", "--responses-grace", "120"] if kept else []
    if TCP & set(drawn):
        options[options.index("--transport") + 1] = "tcp"
    gangs = draw_rails(seed, options, RELAYED & set(drawn)) or draw_gangs(seed, experts)
    gangs, machines = draw_machines(seed, gangs, attention, experts) if not place else (gangs, [])
    if "--pp" in gangs and "--resolve" in options:  # of a pipeline no task has a time of its own
        at = options.index("--resolve")
        del options[at:at + 2]
    if "eps" in options and exact and "--pp" not in gangs and beside("resolved", seed, 0.5):
        options += ["--resolve", "1" if beside("often", seed, 0.5) else "4"]
    sides, n_sides = draw_sides(seed, options, attention, experts) if not machines and not place and exact else ([], 0)
    if n_sides:  # they are struck, too
        more = random.Random(f"struck sides of {seed}")
        struck += [draw_kind(more, kind, attention + experts + n_sides, 0) for kind in drawn if kind in ("kill", "stop", "drain")]
        options += sides
    options += placement + limit + copies + checks + hidden + guesses + place + keeps + gangs + (["--exact"] if exact else [])
    return Schedule(seed, fixture, options, popularity, exact, kept, at_once, requests, drawn,
                    strike_ranks(seed, options, in_order(struck + ([grows] if grows else []))), machines)
