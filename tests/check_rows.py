#!/usr/bin/env python3
"""Facts that stand once in the code and are quoted elsewhere. Of sampling (src/spec/sampling.def): the table of docs/api.md and the bytes
of SUBMIT in docs/protocol.md. Of limits (src/spec/limits.h and the headers of src/serve): the ranges of options in src/base/config.def, and
what the documents say. Usage: check_rows.py ROOT. CTest house.rows."""
import pathlib
import re
import sys

RANGE = r"(FROM|ABOVE)\(([^,]+), ([^)]+)\)"
ROW = re.compile(rf'^SL_SAMPLING\((\w+), (\w+), (\d+), (\S+), (MODEL|OURS), {RANGE}, {RANGE}, (OPENAI|EXTENSION), "(.*)"\)$', re.M)
DRAW = re.compile(r'^SL_DRAW\((\w+), (\w+), (\d+), ".*"\)$', re.M)
HEAD = re.compile(r"\*\*SUBMIT\*\*: (.*?); then", re.S)
BYTES = {"u32": 4, "f32": 4, "u64": 8}

LIMITS = ("src/spec/limits.h", "src/serve/params.h", "src/serve/stop.h")
OPTIONS = {  # what the highest value of an option is
    "temp": "temperature", "top_p": "top_p", "top_k": "top_k",
    "max_num_seqs": "SL_PLAN_MAX_SEQS", "max_num_batched_tokens": "SL_PLAN_MAX_BATCH", "ctx": "SL_PLAN_MAX_CONTEXT",
    "kv_pages": "SL_PLAN_MAX_PAGES", "prefill_stretch": "SL_PLAN_MAX_STRETCH", "threads": "SL_PLAN_MAX_THREADS",
    "microbatches": "SL_PLAN_MAX_LANES", "chunks": "SL_PLAN_MAX_CHUNKS", "groups": "SL_PLAN_MAX_CHUNKS", "resolve": "SL_PLAN_MAX_RESOLVE",
    "attention": "SL_MAX_WORKERS", "experts": "SL_MAX_WORKERS",
}
QUOTES = {  # what a page says, with the numbers of today
    "docs/api.md": (
        "up to {SL_MAX_LOGIT_BIAS} token ids, each -{SL_MAX_BIAS} .. {SL_MAX_BIAS} |",
        "| `logprobs`, `top_logprobs` (chat) | true; 0 .. {SL_MAX_LOGPROBS} likeliest",
        "| `logprobs` (completions) | 0 .. {SL_MAX_LOGPROBS} likeliest",
        "| `stop_token_ids` (extension) | up to {SL_MAX_STOP_IDS} ids |",
        "| `logprob_token_ids` (extension) | 1 .. {SL_MAX_SCORED} token ids",
        "| `bad_words` (extension) | up to {SL_MAX_BAD_WORDS} strings, each of 1 .. {SL_STOP_MAX_BYTES} bytes",
        "at most {SL_MAX_BAD_WORDS} such sequences, of {SL_MAX_BAD_TOKENS} tokens together",
        "| `stop` | a string or up to {SL_STOP_MAX_STRINGS}, each of 1 .. {SL_STOP_MAX_BYTES} bytes |",
        "prompts times `n` at most {SL_API_MAX_CHOICES} |",
        "| choices of a request | {SL_API_MAX_CHOICES} |",
        "| messages of a chat | {SL_API_MAX_MESSAGES} |",
    ),
    "docs/operations.md": ("`workers` (1 to {SL_MAX_WORKERS};", "with --experts up to {SL_MAX_WORKERS};"),
    "docs/protocol.md": (
        "n_set <= {SL_MAX_WORKERS}, and 0 without SET",
        "n_stop (<= {SL_MAX_STOP_IDS})", "n_top (<= {SL_MAX_LOGPROBS};", "n_bias (<= {SL_MAX_LOGIT_BIAS})",
        "f32 bias (-{SL_MAX_BIAS} .. {SL_MAX_BIAS})", "at most {SL_MAX_BAD_WORDS} sequences", "n_scored (<= {SL_MAX_SCORED};", "runs at most {SL_MAX_AHEAD} tokens past it",
    ),
}


def number(text):
    """Of a C constant: 64u, 1e6, (1u << 20)."""
    left, shift, right = text.strip("()").partition("<<")
    value = float(left.rstrip("u ")) if not left.startswith("0x") else int(left, 0)
    return value * 2 ** int(right or 0)


def read_limits(root):
    """Of one constant a line; what is computed is not quoted."""
    text = "".join((root / path).read_text() for path in LIMITS)
    found = re.findall(r"^#define (SL_\w+) +(\(\w+ << \w+\)|[\w.]+)(?= *(?:/\*|$))", text, re.M)
    return {name: number(value) for name, value in found if value[0] in "(0123456789"}


def api_line(row):
    _, name, _, standard, whence, _, _, _, edge, low, high, whose, what = row
    field = f"`{name}`" + (" (extension)" if whose == "EXTENSION" else "")
    values = f"{'above ' if edge == 'ABOVE' else ''}{low} .. {high}; {what}"
    default = f"the model's `generation_config.json`, else {standard}" if whence == "MODEL" else standard
    return f"| {field} | {values} | {default} |"


def check_api(root, rows):
    page = (root / "docs/api.md").read_text().splitlines()
    for row in rows:
        if api_line(row) not in page:
            yield f"docs/api.md lacks the line\n{api_line(row)}"


def check_protocol(root, rows):
    """Fields of the head in their order, as long as their types say, lie where the rows say."""
    at, found = 0, {}
    for kind, name in re.findall(r"\b(u64|u32|f32)\s+(\w+)", HEAD.search((root / "docs/protocol.md").read_text()).group(1)):
        found[name] = (kind, at)
        at += BYTES[kind]
    for kind, name, byte in rows:
        if found.get(name) != (kind, int(byte)):
            yield f"docs/protocol.md: SUBMIT has {found.get(name)} for {name}, the row {kind} at {byte}"


def check_options(root, known):
    text = (root / "src/base/config.def").read_text()
    for option, name in OPTIONS.items():
        most = re.search(rf'^SL_OPT\(\w+, {option}, "[\w-]+", [^,]+, [^,]+, ([^,]+),', text, re.M).group(1)
        if number(most) != known[name]:
            yield f"src/base/config.def: option {option} goes to {most}, {name} to {known[name]:g}"


def check_quotes(root, limits):
    for path, phrases in QUOTES.items():
        page = (root / path).read_text()
        for phrase in phrases:
            said = re.sub(r"{(\w+)}", lambda m: f"{limits[m.group(1)]:.0f}", phrase)
            if said not in page:
                yield f"{path} does not say: {said}"


def main():
    root = pathlib.Path(sys.argv[1])
    text = (root / "src/spec/sampling.def").read_text()
    rows, draws, limits = ROW.findall(text), DRAW.findall(text), read_limits(root)
    errors = [] if len(rows) + len(draws) == len(re.findall(r"^SL_(?:SAMPLING|DRAW)\(", text, re.M)) else ["sampling.def: a row is not read"]
    highest = {row[1]: limits[row[7]] if row[7] in limits else number(row[7]) for row in rows}
    errors += [*check_api(root, rows), *check_protocol(root, [r[:3] for r in rows] + draws)]
    errors += [*check_options(root, limits | highest), *check_quotes(root, limits)]
    print("\n".join(errors) or f"{len(rows) + len(draws)} rows of sampling, {len(OPTIONS)} options and "
          f"{sum(map(len, QUOTES.values()))} quoted limits are as they are said")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
