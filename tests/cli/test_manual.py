"""The man page and the completions that `sluice manual` makes of the tables of verbs and options, and what a service manager
hears of a server."""

import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import served  # noqa: E402

SLUICE = served.SLUICE
MODEL = served.ROOT / "tests" / "golden" / "qwen3moe-tiny"


def manual(kind):
    return subprocess.run([SLUICE, "manual", kind], check=True, capture_output=True, text=True).stdout


def help_of(verb):
    return subprocess.run([SLUICE, verb, "--help"], check=True, capture_output=True, text=True).stdout


def verbs():
    return re.findall(r"^  sluice (\w+)", subprocess.run([SLUICE, "help"], check=True, capture_output=True, text=True).stdout, re.M)


def test_the_man_page_has_every_verb_and_every_option():
    page = manual("man").replace("\\-", "-")
    for verb in verbs():
        assert f".B sluice {verb}" in page
        for option in re.findall(r"^  (--[a-z-]+)", help_of(verb), re.M):
            assert f"\\fB{option}\\fR" in page, (verb, option)


@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not there")
def test_the_man_page_is_formatted_without_a_warning():
    r = subprocess.run(["groff", "-man", "-ww", "-Tutf8"], input=manual("man"), capture_output=True, text=True)
    assert r.returncode == 0 and not r.stderr, r.stderr


def complete_bash(*words):
    script = f"{manual('bash')}\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _sluice; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    return subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout.split()


def test_bash_completes_verbs_and_the_options_of_a_verb():
    assert set(complete_bash("sluice", "se")) == {"serve", "secret"}
    assert complete_bash("sluice", "serve", "--schedu") == ["--schedule"]
    assert complete_bash("sluice", "convert", "--schedu") == []
    assert complete_bash("sluice", "serve", "--port", "") == []  # nobody can guess it


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_theirs(shell, tmp_path):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not there")
    path = tmp_path / f"sluice.{shell}"
    path.write_text(manual(shell))
    subprocess.run([shell, "-n", path], check=True)


def test_another_kind_is_refused():
    r = subprocess.run([SLUICE, "manual", "csh"], capture_output=True, text=True)
    assert r.returncode == 2 and "csh" in r.stderr and "man, bash, zsh or fish" in r.stderr


def test_a_service_manager_is_told(tmp_path, monkeypatch):
    heard, more = [], threading.Condition()
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))

    def listen():
        while True:
            word = manager.recv(4096).decode()
            with more:
                heard.append(word)
                more.notify()

    def hears(what):
        with more:
            return more.wait_for(lambda: any(what in word for word in heard), 60)

    threading.Thread(target=listen, daemon=True).start()
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "300000")
    server = served.Server(MODEL, "--attention", "1", "--experts", "1")
    try:
        assert hears("READY=1\nSTATUS=")
        heard.clear()
        assert hears("WATCHDOG=1")
        server.process.send_signal(signal.SIGTERM)
        assert hears("STOPPING=1")
    finally:
        server.stop()
