"""Virtual environments of tests that want libraries of their own, from PyPI: made when they are first asked for, and anew when the
requirements are others. Standard library only."""
import fcntl
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def python(requirements, name):
    """The interpreter of build/NAME, which has what the file of requirements says."""
    venv = ROOT / "build" / name
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
