"""What the documents write of the command line is there: verbs, and options of the verb they stand behind. tests/run_docs.py runs command blocks."""

import functools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import run_docs  # noqa: E402

PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CALL = re.compile(r"(?:^|&& |\| |\$ )(?:build/)?sluice ([a-z0-9]+)([^|&\n#]*)", re.M)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
# Of other programs that stand in backticks by themselves: vLLM's benchmark, and scripts of bench/ and tests/.
FOREIGN = {"--backend", "--endpoint", "--endpoint-type", "--per-chunk-usage", "--congestion", "--jitter-us", "--rate", "--set", "--ms",
           "--real", "--record", "--steady", "--deferred", "--planted", "--left", "--for", "--busy", "--predict", "--with", "--without",
           "--bind-to", "--map-by", "--no-kill", "--requeue", "--signal",  # of mpirun and of Slurm
           "--gang", "--inside",  # of bench/lab/net.sh
           "--prompt-cache"}  # of llama.cpp


@functools.cache
def options():
    """Verb -> its options, as --help says them."""
    def said(*words):
        return subprocess.run([run_docs.SLUICE, *words], check=True, capture_output=True, text=True).stdout
    return {verb: set(OPTION.findall(said(verb, "--help"))) for verb in re.findall(r"^  sluice (\w+)", said("help"), re.M)}


def calls():
    for page in PAGES:
        text = re.sub(r"\\\n\s*", " ", page.read_text())
        code = "\n".join([*re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M), *re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))])
        for verb, rest in CALL.findall(code):
            yield page.relative_to(ROOT), verb, rest


def test_every_verb_and_option_is_there():
    seen, wrong = 0, []
    for page, verb, rest in calls():
        seen += 1
        if verb not in options():
            wrong.append(f"{page}: no verb {verb}")
            continue
        wrong += [f"{page}: sluice {verb} has no {option}" for option in OPTION.findall(rest) if option not in options()[verb]]
    assert not wrong and seen > 100, wrong


def test_options_by_themselves():
    everything, unknown = set().union(*options().values()), set()
    for page in PAGES:
        for code in re.findall(r"`(--[^`\n]+)`", page.read_text()):
            unknown |= set(OPTION.findall(code)) - everything
    assert not unknown - FOREIGN


def test_nobody_is_told_to_install_another_project():
    """`sluice` on the index is somebody else's, and sluice-moe is not there: wheels come from a file."""
    texts = [*PAGES, ROOT / "CHANGELOG.md", *(ROOT / "packaging").rglob("*.py"), ROOT / "tools" / "sluice" / "main.c"]
    wrong = [f"{page.relative_to(ROOT)}: {line.strip()}" for page in texts for line in page.read_text().splitlines()
             if re.search(r"pip3? install (-\S+ )*[\"'`]?sluice(?![\w/.-]*\.whl)(?!_moe-\*\.whl)", line)]
    assert not wrong, wrong


def test_every_block_is_run_or_says_why():
    """Of NOT_RUN, BEFORE and AFTER every row has its block."""
    firsts = {(page, text.splitlines()[0]) for page in run_docs.PAGES for _, text in run_docs.blocks(page)}
    assert not set(run_docs.NOT_RUN) - firsts
    assert not {*run_docs.BEFORE, *run_docs.AFTER} - {first for _, first in firsts}
