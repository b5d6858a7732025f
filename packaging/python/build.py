#!/usr/bin/env python3
"""Makes the Python wheel of what `make wheel` has compiled: program and library, the package beside this file, libraries that other
systems may lack (auditwheel), every licence. The same commit and system give the same bytes.

  build.py BUILD OUT     BUILD has sluice and libsluice.so; the wheel comes into OUT, its name to stdout"""
import base64
import hashlib
import os
import pathlib
import re
import stat
import subprocess
import sys
import tempfile
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
import linked  # noqa: E402

METADATA = """Metadata-Version: 2.4
Name: sluice-moe
Version: {version}
Summary: Serves Mixture-of-Experts language models: the program, a client, the engine in process
License-Expression: {licence}
{files}Requires-Python: >=3.9
Provides-Extra: ray
Requires-Dist: ray; extra == "ray"
Classifier: Operating System :: POSIX :: Linux
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

# sluice-moe

`sluice`, the server of Mixture-of-Experts language models, as a program; `sluice_moe.Server` runs it, `sluice_moe.Client` talks
with it, and `sluice_moe.Engine` is the engine inside this process. `sluice_moe.ray` starts a deployment on Ray (extra `ray`).

Sluice itself is under Apache-2.0. The libraries in `sluice_moe.libs` come from the Debian packages named in `sboms/`,
unchanged but for their names and where they look for one another, each under its licence in `licenses/`.
"""


def write(path, files, executables):
    """Files by name -> bytes, with their RECORD, as a zip that depends on nothing else."""
    info = next(n.split("/")[0] for n in files if n.split("/")[0].endswith(".dist-info"))
    record = [f"{n},sha256={base64.urlsafe_b64encode(hashlib.sha256(b).digest()).rstrip(b'=').decode()},{len(b)}"
              for n, b in sorted(files.items())]
    record += [f"{info}/RECORD,,", ""]
    when = time.gmtime(linked.epoch())[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        ordered = sorted(files, key=lambda n: (n.startswith(info), n))  # the standard's advice: dist-info last
        for name, data in [*((n, files[n]) for n in ordered), (f"{info}/RECORD", "\n".join(record).encode())]:
            entry = zipfile.ZipInfo(name, when)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (stat.S_IFREG | (0o755 if name in executables else 0o644)) << 16
            z.writestr(entry, data)


def raw_files(build, version):
    files = {f"sluice_moe/{p.name}": p.read_bytes() for p in (HERE / "sluice_moe").iterdir() if p.is_file()}
    files["sluice_moe/bin/sluice"] = (build / "sluice").read_bytes()
    files["sluice_moe/lib/libsluice.so"] = (build / "libsluice.so").read_bytes()
    info = f"sluice_moe-{version}.dist-info"
    files[f"{info}/METADATA"] = METADATA.format(version=version, licence="Apache-2.0", files="").encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: sluice\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n"
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\nsluice = sluice_moe._program:main\n"
    return files


def repair(raw, folder):
    """With the libraries that the manylinux standard does not promise; auditwheel says which standard is met."""
    tools = pathlib.Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SOURCE_DATE_EPOCH": str(linked.epoch())}
    done = subprocess.run([tools / "auditwheel", "repair", "-w", folder, raw], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
    made = list(pathlib.Path(folder).glob("*.whl"))
    if done.returncode or len(made) != 1:
        sys.exit(f"auditwheel: {done.stdout[-3000:]}")
    return made[0]


def with_licences(files, build, version):
    """Sluice's own and those of the libraries that came into it."""
    info = f"sluice_moe-{version}.dist-info"
    brought = linked.brought(files)
    libs = linked.libraries([build / "sluice", build / "libsluice.so"])
    by_file = {p.resolve().name: soname for soname, p in libs.items()} | {soname: soname for soname in libs}
    unknown = [n for n in brought if n not in by_file]
    if unknown:
        sys.exit(f"{unknown}: auditwheel brought what is not linked")
    packages = linked.packages(libs, [by_file[n] for n in brought])
    texts = {"LICENSE": (ROOT / "LICENSE").read_bytes()} | {f"bundled/{p.name}": p.copyright.read_bytes() for p in packages}
    named = {n.decode() for text in list(texts.values()) for n in re.findall(rb"/usr/share/common-licenses/([A-Z]\w*-[0-9]+(?:[.][0-9]+)*)", text)}
    texts |= {f"bundled/{n}": (pathlib.Path("/usr/share/common-licenses") / n).read_bytes() for n in named}
    for name, text in texts.items():
        files[f"{info}/licenses/{name}"] = text
    terms = ["Apache-2.0", *sorted({p.licence for p in packages} - {"Apache-2.0"})]
    expression = " AND ".join(f"({t})" if " OR " in t else t for t in terms)
    rows = "".join(f"License-File: {n}\n" for n in sorted(texts))
    files[f"{info}/METADATA"] = METADATA.format(version=version, licence=expression, files=rows).encode()


def main():
    build, out = map(pathlib.Path, sys.argv[1:3])
    version = linked.version(build / "sluice")
    with tempfile.TemporaryDirectory() as folder:
        executables = {"sluice_moe/bin/sluice", "sluice_moe/lib/libsluice.so"}
        raw = pathlib.Path(folder) / f"sluice_moe-{version}-py3-none-linux_x86_64.whl"
        write(raw, raw_files(build, version), executables)
        repaired = repair(raw, pathlib.Path(folder) / "out")
        with zipfile.ZipFile(repaired) as z:
            files = {n: z.read(n) for n in z.namelist() if not n.endswith("/RECORD") and not n.endswith("/")}
        with_licences(files, build, version)
        out.mkdir(exist_ok=True)
        for old in out.glob("sluice_moe-*.whl"):
            old.unlink()
        write(out / repaired.name, files, executables)
        print(out / repaired.name)


if __name__ == "__main__":
    main()
