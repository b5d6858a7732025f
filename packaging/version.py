#!/usr/bin/env python3
"""The version of this tree, one string for the program, packages and the wheel: X.Y.Z at a tag vX.Y.Z, X.Y.Z+N.gHASH when N commits follow
it, and without such a tag the version of CMakeLists.txt with +gHASH. What git does not have as committed adds .dirty. Debian, PEP 440 and
semantic versioning take all of these as they are, and order them behind X.Y.Z.

  version.py        prints it

Where the tree is no work tree of git, VERSION says it, which `git archive` fills in; where nobody has, it is +unknown."""
import pathlib
import re
import subprocess
import sys
from typing import Optional

ROOT = pathlib.Path(__file__).resolve().parents[1]
HASH = 8  # digits
TAGS = ["--tags", "--match=v[0-9]*.[0-9]*.[0-9]*", "--exclude=*-*"]  # as VERSION has them


def _git(*words: str) -> Optional[str]:
    """What git says of this tree, None: nothing."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], text=True, capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _base() -> str:
    found = re.search(r"^project\(sluice VERSION (\d+\.\d+\.\d+) ", (ROOT / "CMakeLists.txt").read_text(), re.M)
    if not found:
        sys.exit("CMakeLists.txt: has no project(sluice VERSION X.Y.Z")
    return found[1]


def _of(commit: str, described: str, dirty: bool) -> str:
    """described: a tag, or a tag with how many commits follow and a hash, or nothing."""
    tag = re.fullmatch(r"v(\d+\.\d+\.\d+)(?:-(\d+)-g[0-9a-f]+)?", described)
    if described and not tag:
        sys.exit(f"the tag {described}: is not vX.Y.Z")
    after = (tag[2] or "0") if tag else ""
    if after == "0" and not dirty:
        return tag[1]
    return (tag[1] if tag else _base()) + "+" + (after + "." if tag else "") + "g" + commit[:HASH] + (".dirty" if dirty else "")


def version() -> str:
    top = _git("rev-parse", "--show-toplevel")
    commit = _git("rev-parse", "HEAD")
    if top and commit and pathlib.Path(top).resolve() == ROOT:
        return _of(commit, _git("describe", *TAGS) or "", bool(_git("status", "--porcelain", "--untracked-files=no")))
    filled = re.fullmatch(r"([0-9a-f]{40,64}) ?(\S*)", (ROOT / "VERSION").read_text().strip())
    return _of(filled[1], filled[2], False) if filled else _base() + "+unknown"


if __name__ == "__main__":
    print(version())
