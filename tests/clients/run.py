#!/usr/bin/env python3
"""Runs a test file of this folder with the libraries of requirements.txt, in build/clients-venv, which it makes; nothing is fetched but
from PyPI.

    tests/clients/run.py NAME [PYTEST OPTION ...]     NAME as in test_NAME.py"""
import fcntl
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VENV = ROOT / "build" / "clients-venv"


def python():
    """The interpreter of the virtual environment, made when the requirements are others than it was made for."""
    wanted, made = (HERE / "requirements.txt").read_text(), VENV / "made-for.txt"
    VENV.parent.mkdir(exist_ok=True)
    with (VENV.parent / "clients-venv.lock").open("w") as lock:  # units run beside each other
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or made.read_text() != wanted:
            shutil.rmtree(VENV, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
            subprocess.run([VENV / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check",
                            "-r", HERE / "requirements.txt"], check=True)
            made.write_text(wanted)
    return VENV / "bin" / "python"


if __name__ == "__main__":
    if len(sys.argv) < 2 or not (HERE / f"test_{sys.argv[1]}.py").exists():
        sys.exit(f"which of {', '.join(sorted(p.stem.removeprefix('test_') for p in HERE.glob('test_*.py')))}?")
    sys.exit(subprocess.run([python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / f"test_{sys.argv[1]}.py", *sys.argv[2:]],
                            cwd=ROOT).returncode)
