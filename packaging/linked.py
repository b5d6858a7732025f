"""Which libraries a native file needs, of which Debian package each is, and under which licence (packaging/licences.tsv); and a
release's version and time."""

import os
import pathlib
import re
import subprocess
import sys
from typing import Dict, Iterable, List, NamedTuple, Optional

ROOT = pathlib.Path(__file__).resolve().parents[1]
TABLE = ROOT / "packaging" / "licences.tsv"


class Package(NamedTuple):
    name: str
    version: str
    architecture: str
    licence: str
    copyright: pathlib.Path
    files: List[pathlib.Path]  # of its libraries that are needed


def _run(*command: str) -> str:
    done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def licences() -> Dict[str, str]:
    rows = [line.split("\t") for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return {name: licence for name, licence in rows}


def libraries(files: List[pathlib.Path]) -> Dict[str, pathlib.Path]:
    """Soname -> the file that the loader of this system takes, of all that `files` need, directly or not."""
    found: Dict[str, pathlib.Path] = {}
    for file in files:
        for line in _run("ldd", str(file)).splitlines():
            if "not found" in line:
                sys.exit(f"{file}: {line.strip()}")
            match = re.match(r"\s*(\S+) => (/\S+)", line)
            if match:
                found[match[1]] = pathlib.Path(match[2])
    return found


def _owner(path: pathlib.Path) -> str:
    """dpkg knows a file by one of its names, /lib or /usr/lib."""
    at = str(path.resolve())
    for name in dict.fromkeys((at, at.removeprefix("/usr"), "/usr" + at, str(path))):
        done = subprocess.run(["dpkg-query", "-S", name], text=True, capture_output=True)
        if done.returncode == 0:
            return done.stdout.split(": ")[0].split(", ")[0]
    sys.exit(f"{path}: no Debian package has it, so its version and its licence are not known")


def packages(libs: Dict[str, pathlib.Path], only: Optional[List[str]] = None) -> List[Package]:
    """The packages of these libraries, or of the sonames `only`, by name."""
    table = licences()
    found: Dict[str, List[pathlib.Path]] = {}
    for soname, path in libs.items():
        if only is None or soname in only:
            found.setdefault(_owner(path), []).append(path.resolve())
    made = []
    for owner, files in sorted(found.items()):
        name, version, architecture = _run("dpkg-query", "-W", "-f=${Package}\t${Version}\t${Architecture}", owner).split("\t")
        if name not in table:
            sys.exit(f"{TABLE.name}: has no licence of {name}, which has {files[0]}")
        copyright_file = pathlib.Path("/usr/share/doc") / name / "copyright"
        made.append(Package(name, version, architecture, table[name], copyright_file, sorted(files)))
    return made


def brought(names: Iterable[str]) -> List[str]:
    """Of the files of a wheel the libraries that it brings, as they were called: auditwheel adds eight digits to a name."""
    return [re.sub(r"-[0-9a-f]{8}(?=[.])", "", n.split("/")[1]) for n in names if n.startswith("sluice_moe.libs/")]


def version(program: pathlib.Path) -> str:
    """What the program says of itself: what is made of it cannot say anything else."""
    return _run(str(program.resolve()), "--version").split()[1]


def epoch() -> int:
    """Of the commit, so that what is made of it has no time of its own; never before 1980, where zip begins."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        done = subprocess.run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], text=True, capture_output=True)
        given = done.stdout if done.returncode == 0 else "0"
    return max(int(given), 315532800)
