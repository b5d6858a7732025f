#!/usr/bin/env python3
"""The SBOM of a release against the standard's own schema, against the files that it names, and against what the program loads.

  sbom.py FOLDER     with *.cdx.json, SHA256SUMS and what these name; wants cyclonedx-python-lib[json-validation]"""
import hashlib
import json
import pathlib
import subprocess
import sys
import zipfile

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

folder = pathlib.Path(sys.argv[1])
(path,) = folder.glob("*.cdx.json")
bad = JsonStrictValidator(SchemaVersion.V1_6).validate_str(path.read_text())
assert bad is None, bad
bom = json.loads(path.read_text())
files = {c["name"]: c for c in bom["components"] if c["type"] == "file"}
listed = [line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()]
assert sorted(listed) == sorted([*files, path.name]) and {n.rsplit(".", 1)[1] for n in files} == {"deb", "gz", "whl"}, listed
for name, c in files.items():
    assert c["hashes"][0]["content"] == hashlib.sha256((folder / name).read_bytes()).hexdigest(), name
    assert c["components"], name
(wheel,) = (n for n in files if n.endswith(".whl"))
with zipfile.ZipFile(folder / wheel) as z:
    assert {c["name"]: c["hashes"][0]["content"] for c in files[wheel]["components"]} == {
        n: hashlib.sha256(z.read(n)).hexdigest() for n in z.namelist()}
    brought = [n for n in z.namelist() if n.startswith("sluice_moe.libs/")]
libraries = [c for c in bom["components"] if c["type"] == "library"]
known = {f["name"] for c in libraries for f in c["components"]}
for line in subprocess.run(["ldd", folder / "sluice"], check=True, text=True, capture_output=True).stdout.splitlines():
    if " => /" in line:
        assert pathlib.Path(line.split()[2]).resolve().name in known, line
assert all(c["licenses"] and c["version"] and c["purl"].startswith("pkg:deb/") for c in libraries)
bundled = {f["name"] for c in libraries if {"name": "sluice:in-wheel", "value": "true"} in c["properties"] for f in c["components"]}
assert len(bundled) >= len(brought) > 5, (bundled, brought)
print(f"{path.name}: {len(files)} files, {len(libraries)} packages of libraries")
