"""`sluice_moe` for tests: the installed one, else that of the tree, whose program is SLUICE_BIN (default build/sluice)."""

import atexit
import importlib.util
import json
import os
import pathlib
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests" / "golden" / "qwen3moe-tiny"
CASES = json.loads((MODEL / "golden.json").read_text())["cases"]  # greedy ids as transformers has them

if importlib.util.find_spec("sluice_moe") is None:
    _folder = tempfile.mkdtemp(prefix="sluice-moe-")
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    _site = pathlib.Path(_folder)
    shutil.copytree(ROOT / "packaging" / "python" / "sluice_moe", _site / "sluice_moe")
    (_site / "sluice_moe" / "bin").mkdir()
    (_site / "sluice_moe" / "bin" / "sluice").symlink_to(pathlib.Path(os.environ.get("SLUICE_BIN", ROOT / "build" / "sluice")).resolve())
    _info = _site / "sluice_moe-0.dist-info"
    _info.mkdir()
    (_info / "METADATA").write_text("Metadata-Version: 2.1\nName: sluice-moe\nVersion: 0\n")
    sys.path.insert(0, _folder)

import sluice_moe  # noqa: E402

__all__ = ["CASES", "MODEL", "ROOT", "sluice_moe"]
