"""Editing at the prompt of `sluice run MODEL --chat`, on a pseudo-terminal; /history shows what arrived."""
import os
import struct
import fcntl
import termios

import pytest

from test_chat import Terminal, terminal  # noqa: F401 (a fixture)

UP, DOWN, LEFT, RIGHT = "\x1b[A", "\x1b[B", "\x1b[D", "\x1b[C"
HOME, END, DELETE, BACKSPACE = "\x1b[H", "\x1b[F", "\x1b[3~", "\x7f"
ALT_ENTER, PASTE, PASTED = "\x1b\r", "\x1b[200~", "\x1b[201~"


@pytest.fixture
def chat(terminal, monkeypatch):  # noqa: F811
    monkeypatch.setenv("TERM", "xterm")
    t = terminal("-n", "2")
    t.expect("\r\n> ", 60)
    return t


def say(t, keys):
    t.type(keys)
    t.expect(r"\[\d+ prompt tokens.*?\]\r\n> ")


def history(t):
    """What the user said, as /history shows it."""
    t.type("/history\r")
    text = t.expect(r"/history\r\n(.*?)\r\n> ").group(1).replace("\r\n", "\n")
    return [part.split("\nassistant: ")[0] for part in ("\n" + text).split("\nuser: ")[1:]]


EDITS = {
    "plain": ("hello\r", "hello"),
    "line feed is Enter": ("hello\n", "hello"),
    "backspace over characters": ("x\u20ac\u00e9" + BACKSPACE * 2 + "z\r", "xz"),
    "backspace over a wide one": ("a\U0001F30Db" + LEFT + BACKSPACE + "\r", "ab"),
    "a mark goes with its letter": ("ae\u0301b" + LEFT + BACKSPACE + "\r", "ab"),
    "insert": ("ac" + LEFT + "b\r", "abc"),
    "home and end": ("bc" + HOME + "a" + END + "d\r", "abcd"),
    "control keys": ("b\x01a\x05c\x02\x02\x06x\r", "abxc"),
    "delete": ("abc" + HOME + DELETE + RIGHT + "\x04\r", "b"),
    "words": ("one two three\x17\x17four\x1bb\x1bbzero \r", "zero one four"),
    "kill and yank": ("ab cd\x15x \x19\r", "x ab cd"),
    "kill the rest": ("abcd" + LEFT * 2 + "\x0b\r", "ab"),
    "new line": ("a" + ALT_ENTER + "b\r", "a\nb"),
    "pasted lines": (PASTE + "one\ntwo\x03\tthree" + PASTED + "!\r", "one\ntwo\tthree!"),
    "unknown keys": ("a\x1b[15~\x1b[1;5Pb\x00\x1d\r", "ab"),
    "longer than the screen": ("0123456789" * 30 + HOME + "a" + END + "b\r",
                               "a" + "0123456789" * 30 + "b"),
}


def test_edits(chat):
    for name, (keys, text) in EDITS.items():
        say(chat, keys)
        assert history(chat) == [text], name
        chat.type("/undo\r")
        chat.expect(r"/undo\r\n> ")


def test_earlier_lines_come_back(chat):
    for text in ("one", "two", "two"):
        say(chat, text + "\r")
    say(chat, UP + UP + "!\r")
    say(chat, "dra" + UP + DOWN + "ft\r")
    say(chat, UP * 20 + DOWN * 20 + "\x15fresh\r")
    assert history(chat) == ["one", "two", "two", "one!", "draft", "fresh"]


def test_narrow_terminal(chat):
    fcntl.ioctl(chat.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 20, 0, 0))
    text = "\u4e2d\u6587 and words that go on and on"
    say(chat, text + HOME + RIGHT * 5 + BACKSPACE + "\r")
    assert history(chat) == [text[:4] + text[5:]]


def test_commands_of_a_conversation(chat):
    say(chat, "one\r")
    say(chat, "two\r")
    chat.type("/undo\r")
    chat.expect(r"/undo\r\n> ")
    assert history(chat) == ["one"]
    chat.type("/reset\r")
    chat.expect(r"a new conversation\)\r\n> ")
    chat.type("/history\r")
    chat.expect(r"nothing was said")
    chat.type("/quit\r")
    assert chat.wait() == 0


def test_the_terminal_is_left_as_it_was(chat):
    flags = lambda: termios.tcgetattr(chat.fd)[3]
    assert not flags() & (termios.ICANON | termios.ECHO | termios.ISIG)
    chat.type("text\x03")
    chat.expect(r"Ctrl-D or /exit leaves\)\r\n> ")
    keep = os.dup(chat.fd)
    chat.type("\x04")
    chat.expect(r"\x1b\[\?2004l")  # before it ends: what was written last may be lost with the terminal
    assert chat.wait() == 0
    found = termios.tcgetattr(keep)[3]
    os.close(keep)
    assert found & termios.ICANON and found & termios.ECHO and found & termios.ISIG


def test_a_dumb_terminal_reads_plain_lines(terminal, monkeypatch):  # noqa: F811
    monkeypatch.setenv("TERM", "dumb")
    t = terminal("-n", "2")
    t.expect("> ", 60)
    assert termios.tcgetattr(t.fd)[3] & termios.ICANON
    say(t, "hello\n")
    t.type("\x04")
    assert t.wait() == 0
