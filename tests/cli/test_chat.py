"""`sluice run MODEL --chat` as a conversation: through a pipe, and through a pseudo-terminal where Ctrl-C
is a key."""

import os
import pty
import re
import select
import subprocess
import time

import pytest

from test_cli import FIXTURE, SLUICE, refused

CHAT = ["run", FIXTURE, "--chat", "--temp", "0"]


def clean_env():
    return {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}


def piped(text, *args):
    """Answers and diagnostics of a conversation read from a pipe."""
    done = subprocess.run([SLUICE, *map(str, CHAT), *args], input=text.encode(),
                          capture_output=True, timeout=60, env=clean_env())
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    assert done.returncode == 0, err
    assert "Sanitizer" not in err, err
    return out, err


def prompt_sizes(err):
    return [int(n) for n in re.findall(r"\[(\d+) prompt tokens", err)]


class Terminal:
    """The program on a pseudo-terminal, as its session's foreground."""

    def __init__(self, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(SLUICE, [str(SLUICE), *map(str, CHAT), *args], clean_env())
        self.seen = ""

    def type(self, text):
        os.write(self.fd, text.encode())

    def expect(self, pattern, seconds=30):
        """Waits for a match in what was printed since the last one."""
        end = time.monotonic() + seconds
        while True:
            found = re.search(pattern, self.seen, re.S)
            if found:
                self.seen = self.seen[found.end():]
                return found
            left = end - time.monotonic()
            assert left > 0, f"{pattern!r} not in {self.seen!r}"
            if select.select([self.fd], [], [], left)[0]:
                try:
                    self.seen += os.read(self.fd, 4096).decode(errors="replace")
                except OSError:  # the program has left
                    assert re.search(pattern, self.seen, re.S), self.seen
                    continue

    def wait(self, seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.seen += os.read(self.fd, 4096).decode(errors="replace")
                except OSError:
                    pass
        raise AssertionError(f"it does not leave: {self.seen!r}")

    def kill(self):
        try:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


@pytest.fixture
def terminal():
    open_now = []

    def start(*args):
        open_now.append(Terminal(*args))
        return open_now[-1]

    yield start
    for one in open_now:
        one.kill()


def test_answers_alone_are_on_stdout():
    one = subprocess.run([SLUICE, *map(str, CHAT), "-p", "Who was Jonah?", "-n", "12"],
                         capture_output=True, timeout=60, env=clean_env()).stdout.decode()
    out, err = piped("Who was Jonah?\n", "-n", "12")
    assert out == one and out.endswith("\n")
    assert ">" not in err and len(prompt_sizes(err)) == 1


def test_history_grows_until_cleared():
    out, err = piped("one\ntwo\n/clear\ntwo\none\n", "-n", "6")
    sizes = prompt_sizes(err)
    assert sizes[1] > sizes[0] and sizes[2] < sizes[1] and sizes[3] > sizes[2]
    assert "a new conversation" in err


def test_turns_begin_with_pages_of_those_before():
    """Full ones, of 32 tokens; and a talk that begins again begins with its own."""
    line = "Tell me of rivers, weirs and gates, and of all that floats there. " * 4
    out, err = piped(f"{line}\nand then?\n/clear\n{line}\n", "-n", "6")
    sizes = prompt_sizes(err)
    cached = [int(n or 0) for n in re.findall(r"prompt tokens(?:, (\d+) of them cached)?;", err)]
    assert len(cached) == 3 and cached[0] == 0 and sizes[0] > 64
    assert (sizes[0] - 32) // 32 * 32 <= cached[1] <= (sizes[1] - 1) // 32 * 32
    assert sizes[2] == sizes[0] and cached[2] == (sizes[0] - 1) // 32 * 32


def cached_tokens(err):
    return [int(n or 0) for n in re.findall(r"prompt tokens(?:, (\d+) of them cached)?[;,]", err)]


@pytest.mark.parametrize("how", [[], ["--attention", "2", "--experts", "1", "--transport", "shm"]], ids=["threads", "processes"])
def test_a_talk_goes_on_with_the_pages_of_the_last_one(tmp_path, how):
    """--kv-disk: a program that ends leaves them to the next one, which says the same; so does one with a prompt alone."""
    line = "Tell me of rivers, weirs and gates, and of all that floats there. " * 4
    args = ["-n", "6", "--exact", "--kv-disk", str(tmp_path / "kv"), *how]
    out, err = piped(f"{line}\nand then?\n", *args)
    again, said = piped(f"{line}\nand then?\n", *args)
    assert again == out
    assert cached_tokens(err)[0] == 0
    assert cached_tokens(said) == [(n - 1) // 32 * 32 for n in prompt_sizes(err)]
    once, said = piped("", *args, "-p", line)
    assert cached_tokens(said) == [(n - 1) // 32 * 32 for n in prompt_sizes(err)[:1]]
    assert once.strip() == out.splitlines()[0].strip()
    assert {f.stat().st_mode & 0o777 for f in (tmp_path / "kv").iterdir()} == {0o600}


def test_many_lines():
    expected = piped("a b\nc d\n", "-n", "4")[1]
    backslash = piped("a b\\\nc d\n", "-n", "4")
    block = piped('"""\na b\nc d\n"""\n', "-n", "4")
    assert len(prompt_sizes(expected)) == 2
    assert backslash == block or (backslash[0] == block[0] and
                                  prompt_sizes(backslash[1]) == prompt_sizes(block[1]))
    assert len(prompt_sizes(block[1])) == 1
    # the end of input ends an open block; a backslash inside one is a backslash
    assert prompt_sizes(piped('"""\na b\nc d\n', "-n", "4")[1]) == prompt_sizes(block[1])
    assert prompt_sizes(piped('"""\na b\\\nc d\n"""\n', "-n", "4")[1])[0] > \
        prompt_sizes(block[1])[0]


def test_commands():
    out, err = piped("\n/help\n/what\n/exit\nnot read\n")
    assert out == "" and "/clear" in err and "unknown command /what" in err
    assert prompt_sizes(err) == []


def test_a_message_that_does_not_fit_is_dropped():
    out, err = piped("word " * 3000 + "\nshort\n", "-n", "3")
    assert "the context" in err and len(prompt_sizes(err)) == 1 and out


def test_bad_bytes_are_refused_and_the_conversation_goes_on():
    done = subprocess.run([SLUICE, *map(str, CHAT), "-n", "3"], input=b"\xff\xfe\nshort\n",
                          capture_output=True, timeout=60, env=clean_env())
    assert done.returncode == 0 and b"UTF-8" in done.stderr and done.stdout


def test_json_needs_a_prompt():
    assert "--json needs" in refused(2, *CHAT, "--json")


def test_terminal_conversation(terminal):
    t = terminal("-n", "5")
    t.expect("> ")
    t.type("hello\n")
    t.expect(r"\[\d+ prompt tokens[^;]*; 5 tokens.*\]\r\n> ")
    t.type("a\\\n")
    t.expect(r"\.\.\. ")
    t.type("b\n")
    t.expect(r"\[\d+ prompt tokens.*\]\r\n> ")
    t.type("\x04")
    assert t.wait() == 0


@pytest.mark.parametrize("deploy", [[], ["--attention", "1", "--experts", "1", "--transport", "shm"]],
                         ids=["threads", "processes"])
def test_ctrl_c_stops_the_answer_not_the_program(terminal, deploy):
    t = terminal("-n", "400", "--ignore-eos", "--delay-us", "20000", *deploy) if not deploy else \
        terminal("-n", "100000", "--ignore-eos", "--ctx", "512", *deploy)
    t.expect("> ", 60)
    t.type("\x03")  # at the prompt: a new prompt
    t.expect(r"Ctrl-D or /exit leaves\)\r\n> ")
    t.type("tell me\n")
    t.expect(r"tell me\r\n.")  # it has begun
    t.type("\x03")
    made = t.expect(r"; (\d+) tokens, .*?\]\r\n> ")
    if not deploy:
        assert "stopped" in made.group(0) and int(made.group(1)) < 400
    t.type("and\n")
    t.expect(r"and\r\n.")
    t.type("\x03")
    t.expect(r"\]\r\n> ", 60)
    t.type("/exit\n")
    assert t.wait() == 0
