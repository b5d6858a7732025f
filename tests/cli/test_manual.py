"""The man pages and the completions that `sluice manual` makes of the tables of verbs and options, and what a service manager
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


def manual(*kind):
    return subprocess.run([SLUICE, "manual", *kind], check=True, capture_output=True, text=True).stdout


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


def test_each_verb_has_a_page_with_its_options_alone():
    for verb in verbs():
        page = manual("man", verb).replace("\\-", "-")
        assert page.startswith(f".TH SLUICE-{verb.upper()} 1 ") and f"\n.SH NAME\nsluice-{verb} - " in page
        assert re.findall(r"^\\fB(--[a-z-]+)", page, re.M) == re.findall(r"^  (--[a-z-]+)", help_of(verb), re.M), verb
        assert f"sluice-{verb} (1)" in manual("man").replace("\\-", "-")


def read_variables():
    """Names that stand in the table of variables; options.c alone reads any, by this table or as an option."""
    rows = (served.ROOT / "src" / "base" / "variables.def").read_text()
    return re.findall(r'^SL_VARIABLE\(\w+, "(\w+)", "(\w+)"', rows, re.M)


def test_pages_have_the_variables_that_are_read():
    listed = {name: letters for name, letters in read_variables()}
    assert {"SLUICE_SECRET", "HF_HOME", "HF_TOKEN", "NOTIFY_SOCKET"} <= set(listed)
    assert set(re.findall(r"getenv\((.*?)\)", (served.ROOT / "src" / "base" / "options.c").read_text())) == {"name", "variables[v].name"}

    def of(*verb):
        page = manual("man", *verb)
        return set(re.findall(r"^\.B ([A-Z_]+)$", page.split("\n.SH ENVIRONMENT\n")[1], re.M)) if "ENVIRONMENT" in page else set()

    assert of() == set(listed)
    assert of("worker") == {name for name in listed if "w" in listed[name]}
    assert of("solve") == set() and "TERM" in of("run") and "SLUICE_SECRET" not in of("convert")


def test_what_has_no_page_is_refused():
    for words, why in ((("man", "nothing"), "no verb 'nothing'"), (("bash", "serve"), "leave out 'serve'"), ((), "kind, man, bash")):
        r = subprocess.run([SLUICE, "manual", *words], capture_output=True, text=True)
        assert r.returncode == 2 and why in r.stderr and not r.stdout


@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not there")
def test_man_pages_are_formatted_without_a_warning():
    for words in ([], *([verb] for verb in verbs())):
        r = subprocess.run(["groff", "-man", "-ww", "-Tutf8"], input=manual("man", *words), capture_output=True, text=True)
        assert r.returncode == 0 and not r.stderr, (words, r.stderr)


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
        assert hears("READY=1\nSTATUS=m on http://")
        assert sum("READY=1" in word for word in heard) == 1  # its workers are its own affair
        heard.clear()
        assert hears("WATCHDOG=1")
        server.process.send_signal(signal.SIGTERM)
        assert hears("STOPPING=1")
    finally:
        server.stop()
