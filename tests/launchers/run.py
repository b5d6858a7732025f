#!/usr/bin/env python3
"""Runs test_ray.py with the Ray that it wants, from PyPI, in a virtual environment under build/, which it makes.

    tests/launchers/run.py [PYTEST OPTION ...]"""
import fcntl
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def python():
    """The interpreter of that environment, made when the requirements are others than it was made for."""
    requirements, venv = HERE / "requirements.txt", ROOT / "build" / "launchers-venv"
    wanted, made = requirements.read_text(), venv / "made-for.txt"
    venv.parent.mkdir(exist_ok=True)
    with venv.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or made.read_text() != wanted:
            shutil.rmtree(venv, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", venv], check=True)
            subprocess.run([venv / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", requirements],
                           check=True)
            made.write_text(wanted)
    return venv / "bin" / "python"


if __name__ == "__main__":
    sys.exit(subprocess.run([python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "test_ray.py", *sys.argv[1:]], cwd=ROOT).returncode)
