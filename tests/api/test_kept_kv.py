"""Remote attention workers keep KV while they have no coordinator: the next one, with the journal, goes on with it. Tokens are
those of a run that nobody disturbed, rows of full pages are not computed again, and what cannot be used is dropped."""
import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import time

import journal_file
import pytest
import sample
from conftest import BINARY, GOLDEN, start
from test_journal import CHAT, FIXTURE, TALK, TEXT, Client, answer, ask_all, finish, headers, kill_after

PAGE, AHEAD = 32, 32  # tokens of a page, and that a worker may be ahead of its coordinator
PROMPT = [(7 * i + 3) % 500 for i in range(1500)]
LONG = {"prompt": PROMPT, "max_tokens": 700, "ignore_eos": True, "return_token_ids": True, "stream": True}
ASKED = [(TEXT, {**LONG, "seed": 1}), (TEXT, {**LONG, "prompt": PROMPT[::-1], "temperature": 0, "logprobs": 2}),
         (TEXT, {**LONG, "prompt": PROMPT[40:], "seed": 3, "n": 2})]
STREAMS = 4


class Deployment:
    """Attention workers and an expert worker that nobody's coordinator started, and the servers that have them one after the
    other."""

    def __init__(self, make_server, folder, attention=2):
        self.make_server, self.folder, self.log = make_server, folder, folder / "workers"
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.plan = folder / "plan.json"
        self.plan.write_text(json.dumps({"version": 1, "schedule": "dep", "workers": [
            *[{"roles": ["attention"]}] * attention, {"roles": ["expert"]}]}))
        self.env = {**os.environ, "SLUICE_SECRET": "of these processes"}
        self.workers = [self.start(i) for i in range(attention + 1)]

    def start(self, i):
        return subprocess.Popen([BINARY, "worker", "--join", f"127.0.0.1:{self.port}", "--transport", "tcp", "--worker-id", str(i),
                                 "--log", "info"], env=self.env, stderr=self.log.open("a"))

    def serve(self, model, *args):
        os.environ["SLUICE_SECRET"] = self.env["SLUICE_SECRET"]
        try:
            return self.make_server(model, "--responses", "64", "--journal", str(self.folder / "journal"), "--remote", "--plan",
                                    str(self.plan), "--fabric-port", str(self.port), "--transport", "tcp", "--log", "info", *args)
        finally:
            del os.environ["SLUICE_SECRET"]

    def end(self, server):
        server.stop()
        assert [w.wait(20) for w in self.workers] == [0] * len(self.workers), self.log.read_text()


def with_room(folder):
    """The fixture with room for long prompts: nothing in its weights depends on that."""
    shutil.copytree(GOLDEN / FIXTURE, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return folder


@pytest.fixture
def long_model(tmp_path):
    return with_room(tmp_path / FIXTURE)


@pytest.fixture
def deployment(make_server, tmp_path, request):
    with contextlib.ExitStack() as at_end:
        made = Deployment(make_server, tmp_path, getattr(request, "param", 2))
        for worker in made.workers:
            at_end.callback(worker.wait)
            at_end.callback(worker.kill)
        yield made


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What would have come: the answers of one process that nobody disturbs. With --exact no bit depends on workers and ranks, but for options that say so."""
    folder = with_room(tmp_path_factory.mktemp("model") / FIXTURE)

    @functools.cache
    def of(asked, *options):
        server = start(tmp_path_factory, folder, ["--exact", *options])
        answers = finish([Client(server, path, body, headers(f"other {i}")) for i, (path, body) in enumerate(json.loads(asked))])
        server.stop()
        return answers

    return lambda asked, *options: of(json.dumps(asked), *options)


def serves_others(server, want):
    """Who asks for the first of ASKED anew has the same tokens."""
    few, = finish([Client(server, TEXT, {**ASKED[0][1], "max_tokens": 40}, headers("other"))])
    assert few["choices"][0]["token_ids"] == want[0]["choices"][0]["token_ids"][:40]


def assert_spared(server):
    """Of those that had not ended: a client that was slow to ask may be the only one left."""
    kept, again = rows(server)
    assert kept >= min(len(body["prompt"]) for _, body in ASKED) // PAGE * PAGE and 0 < again <= STREAMS * (PAGE + AHEAD), (kept, again)


def ask_and_await(server, asked):
    """Until every choice draws tokens: its prompt is in KV."""
    clients, end = ask_all(server, asked), time.monotonic() + 180
    choices = [(c, i) for c in clients for i in range(c.body.get("n", 1))]
    while not all(len(c.heard().get(i, [])) > 20 for c, i in choices):
        assert time.monotonic() < end
        time.sleep(0.001)
    return clients


def rows(server):
    return [server.metric(f"rows_{what}_total") for what in ("kept", "recomputed")]


GANG = ["--tp", "2"]  # whose ranks are threads of the worker


# who shares nothing still finds its own; four ranks of two kv heads have the same heads twice
@pytest.mark.parametrize("how", sample.of([["--prefix-cache", "key"], ["--prefix-cache", "off"], GANG, ["--attention-tp", "4", "--segments"]], 1, 2),
                         ids=" ".join)
def test_answers_go_on_with_the_rows_that_workers_kept(deployment, long_model, undisturbed, how):
    first = deployment.serve(long_model, "--exact", *how)
    kill_after(first, ask_and_await(first, ASKED), 0)
    second = deployment.serve(long_model, "--exact", *how)
    whole, want = finish(ask_all(second, ASKED)), undisturbed(ASKED, *(o for o in how if o == "--segments"))
    assert_spared(second)
    assert whole == want
    serves_others(second, want)
    assert second.wait_idle()
    assert second.metric("kv_pages_cached") > 0
    assert second.metric("kv_cache_usage_perc") == 0
    deployment.end(second)


def test_killed_again_before_it_has_given_them_out(deployment, long_model, undisturbed):
    """Twice in a row: what the worker has told nobody has used is told again, and what was in use is kept again."""
    server = deployment.serve(long_model, "--exact")
    kill_after(server, ask_and_await(server, ASKED), 0)
    for _ in range(3):
        server = deployment.serve(long_model, "--exact")
        server.process.kill()
        server.process.wait()
    server = deployment.serve(long_model, "--exact")
    whole = finish(ask_all(server, ASKED))
    assert_spared(server)
    assert whole == undisturbed(ASKED)
    serves_others(server, whole)
    deployment.end(server)


def test_what_was_asked_about_a_prompt_comes_once(deployment, long_model, undisturbed, tmp_path):
    """Killed in the midst of a prompt whose tokens' log-probabilities are asked for: rows that have not reported are computed again."""
    prompt, journal = (PROMPT * 3)[:3500], tmp_path / "journal"
    body = {**LONG, "prompt": prompt, "max_tokens": 8, "seed": 5, "logprobs": 1, "echo": True}
    slowly = ["--exact", "--max-num-batched-tokens", "32"]
    server = deployment.serve(long_model, *slowly)
    enough = journal.stat().st_size + len(json.dumps(prompt)) + 4 * len(prompt) + 8000
    clients, end = ask_all(server, [(TEXT, body)]), time.monotonic() + 120
    while journal.stat().st_size < enough:
        assert time.monotonic() < end
    kill_after(server, clients, 0)
    reported = max(len(ids) for choices in journal_file.tokens(journal).values() for ids in choices.values())
    assert PAGE < reported < len(prompt), "it was killed too early, or too late"
    server = deployment.serve(long_model, *slowly)
    assert finish(ask_all(server, [(TEXT, body)])) == undisturbed([(TEXT, body)])
    assert rows(server) == [reported // PAGE * PAGE, len(prompt) - reported // PAGE * PAGE]
    deployment.end(server)


@pytest.mark.parametrize("deployment", [1], indirect=True)
def test_a_worker_that_was_silent_comes_back_with_its_rows(deployment, long_model, undisturbed):
    """The coordinator lives and has given it up: its requests wait, there is nobody else."""
    server = deployment.serve(long_model, "--exact", "--silence-limit", "1")
    clients, end = ask_and_await(server, ASKED), time.monotonic() + 30
    deployment.workers[0].send_signal(signal.SIGSTOP)
    while server.metric("workers_lost_total") == 0 and time.monotonic() < end:
        time.sleep(0.05)
    deployment.workers[0].send_signal(signal.SIGCONT)
    whole = finish(clients)
    assert_spared(server)
    assert whole == undisturbed(ASKED)
    serves_others(server, whole)
    deployment.end(server)


OTHERS = {"numerics": ["--wire", "bf16"], "pool": ["--exact", "--kv-pages", "300"], "ranks": ["--exact", *GANG],
          "processes": ["--exact", *GANG, "--tp-ranks", "processes"]}


@pytest.mark.parametrize("other", sample.of(OTHERS, 0, 2))
def test_by_another_plan_they_are_of_no_use(deployment, long_model, other):
    first = deployment.serve(long_model, "--exact")
    kill_after(first, ask_and_await(first, ASKED[:1]), 0)
    second = deployment.serve(long_model, *OTHERS[other])
    whole = finish(ask_all(second, ASKED[:1]))
    assert len(whole[0]["choices"][0]["token_ids"]) == LONG["max_tokens"]
    kept, again = rows(second)
    assert kept == 0 and again >= len(PROMPT)
    assert "of no use by this plan" in deployment.log.read_text()
    deployment.end(second)


def test_another_model_has_nothing_of_them(deployment, long_model, tmp_path):
    """Weights that changed where they were, which no header shows, and another architecture."""
    first = deployment.serve(long_model, "--exact")
    kill_after(first, ask_and_await(first, ASKED[:1]), 0)
    for name in long_model.iterdir():
        os.utime(name)
    second = deployment.serve(long_model, "--exact")
    finish(ask_all(second, ASKED[:1]))
    assert rows(second)[0] == 0
    kill_after(second, [Client(second, CHAT, {**TALK, "seed": 3, "stream": True}, headers("talk"))], 40)
    (tmp_path / "journal").unlink()
    third = deployment.serve("mixtral-tiny", "--exact")
    asked = {"prompt": PROMPT[:200], "max_tokens": 20, "temperature": 0, "return_token_ids": True, "model": "mixtral-tiny"}
    there = Client(third, TEXT, asked, headers("there"))
    alone = deployment.make_server("mixtral-tiny", "--exact")
    here = Client(alone, TEXT, asked, headers("here"))
    there.join()
    here.join()
    assert answer(there)["choices"][0]["token_ids"] == answer(here)["choices"][0]["token_ids"]
    assert rows(third)[0] == 0 and deployment.log.read_text().count("of no use by this plan") >= 2
    deployment.end(third)
