#!/usr/bin/env python3
"""Runs a test file of this folder with the libraries that it wants, in a virtual environment under build/, which it makes; nothing is
fetched but from PyPI. Some libraries want version 3 of openai, others a version before; aider wants its own version of nearly everything.

    tests/clients/run.py NAME [PYTEST OPTION ...]     NAME as in test_NAME.py"""
import fcntl
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KINDS = {"aider": "-aider", "langchain": "-openai3", "openai_agents": "-openai3", "pydantic_ai": "-openai3"}


def python(name):
    """The interpreter of that file's virtual environment, made when the requirements are others than it was made for."""
    kind = KINDS.get(name, "")
    requirements, venv = HERE / f"requirements{kind}.txt", ROOT / "build" / f"clients-venv{kind}"
    wanted, made = requirements.read_text(), venv / "made-for.txt"
    venv.parent.mkdir(exist_ok=True)
    with venv.with_suffix(".lock").open("w") as lock:  # units run beside each other
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or made.read_text() != wanted:
            shutil.rmtree(venv, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
            subprocess.run([venv / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", requirements],
                           check=True)
            made.write_text(wanted)
    return venv / "bin" / "python"


if __name__ == "__main__":
    if len(sys.argv) < 2 or not (HERE / f"test_{sys.argv[1]}.py").exists():
        sys.exit(f"which of {', '.join(sorted(p.stem.removeprefix('test_') for p in HERE.glob('test_*.py')))}?")
    sys.exit(subprocess.run([python(sys.argv[1]), "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / f"test_{sys.argv[1]}.py", *sys.argv[2:]],
                            cwd=ROOT).returncode)
