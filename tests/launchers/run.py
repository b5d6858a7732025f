#!/usr/bin/env python3
"""Runs test_ray.py with the Ray that it wants, from PyPI, in a virtual environment under build/, which it makes.

    tests/launchers/run.py [PYTEST OPTION ...]"""
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import environment  # noqa: E402

if __name__ == "__main__":
    python = environment.python(HERE / "requirements.txt", "launchers-venv")
    sys.exit(subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "test_ray.py", *sys.argv[1:]],
                            cwd=environment.ROOT).returncode)
