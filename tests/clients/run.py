#!/usr/bin/env python3
"""Runs a test file of this folder with the libraries that it wants, in a virtual environment under build/, which it makes; nothing is
fetched but from PyPI. Some libraries want version 3 of openai, others a version before; aider wants its own version of nearly everything.

    tests/clients/run.py NAME [PYTEST OPTION ...]     NAME as in test_NAME.py"""
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import environment  # noqa: E402

KINDS = {"aider": "-aider", "langchain": "-openai3", "openai_agents": "-openai3", "pydantic_ai": "-openai3"}


def python(name):
    """The interpreter of that file's virtual environment."""
    kind = KINDS.get(name, "")
    return environment.python(HERE / f"requirements{kind}.txt", f"clients-venv{kind}")


if __name__ == "__main__":
    if len(sys.argv) < 2 or not (HERE / f"test_{sys.argv[1]}.py").exists():
        sys.exit(f"which of {', '.join(sorted(p.stem.removeprefix('test_') for p in HERE.glob('test_*.py')))}?")
    sys.exit(subprocess.run([python(sys.argv[1]), "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / f"test_{sys.argv[1]}.py", *sys.argv[2:]],
                            cwd=environment.ROOT).returncode)
