#!/usr/bin/env python3
"""What a release is made of, as CycloneDX 1.6 JSON: its files and what is in them with digests; the Debian packages whose libraries the
program loads, or which the wheel brings, with versions and licences (packaging/licences.tsv). From the files themselves, after they were made.

  sbom.py PROGRAM FILE...     writes sluice-VERSION.cdx.json. PROGRAM: the one that was packaged; FILE: *.deb, *.tar.gz, *.whl"""
import datetime
import hashlib
import io
import json
import pathlib
import re
import subprocess
import sys
import tarfile
import urllib.parse
import uuid
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import linked  # noqa: E402


def sha256(data):
    return [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}]


def contents(path):
    """Name -> bytes of the files in an archive."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as z:
            return {n: z.read(n) for n in z.namelist()}
    data = path.read_bytes()
    if path.suffix == ".deb":
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {m.name.removeprefix("./"): tar.extractfile(m).read() for m in tar if m.isfile()}


def file_component(path):
    inside = [{"type": "file", "bom-ref": f"{path.name}#{name}", "name": name, "hashes": sha256(data)} for name, data in sorted(contents(path).items())]
    return {"type": "file", "bom-ref": path.name, "name": path.name, "hashes": sha256(path.read_bytes()), "components": inside}


def licence(expression):
    return [{"expression": expression}] if " " in expression else [{"license": {"id": expression}}]


def library_component(package, loaded, bundled):
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)', pathlib.Path("/etc/os-release").read_text(), re.M))
    purl = (f"pkg:deb/{release['ID']}/{package.name}@{urllib.parse.quote(package.version, safe='')}"
            f"?arch={package.architecture}&distro={release['ID']}-{release['VERSION_ID']}")
    return {"type": "library", "bom-ref": purl, "name": package.name, "version": package.version, "purl": purl, "licenses": licence(package.licence),
            "components": [{"type": "file", "bom-ref": f"{purl}#{f.name}", "name": f.name, "hashes": sha256(f.read_bytes())} for f in package.files],
            "properties": [{"name": "sluice:loaded-by-program", "value": str(loaded).lower()},
                           {"name": "sluice:in-wheel", "value": str(bundled).lower()}]}


def needed(program):
    """Sonames that the program itself asks for."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", subprocess.run(["readelf", "-d", program], check=True, text=True, capture_output=True).stdout)


def main():
    program, files = pathlib.Path(sys.argv[1]), sorted(map(pathlib.Path, sys.argv[2:]))
    version = linked.version(program)
    wheel_build = linked.ROOT / "build-wheel" / "sluice"
    loaded = linked.libraries([program])
    libs = loaded | linked.libraries([wheel_build])
    brought = linked.brought(name for f in files if f.suffix == ".whl" for name in contents(f))
    packages = {p.name: p for p in linked.packages(libs)}
    of_program = {p.name for p in linked.packages(loaded)}
    of_wheel = {p.name for p in linked.packages(libs, [s for s, path in libs.items() if path.resolve().name in brought or s in brought])}
    direct = {p.name for p in linked.packages(loaded, needed(program))}
    components = {n: library_component(p, n in of_program, n in of_wheel) for n, p in packages.items()}
    when = datetime.datetime.fromtimestamp(linked.epoch(), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    bom = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"timestamp": when,
                     "component": {"type": "application", "bom-ref": "sluice", "name": "sluice", "version": version, "licenses": licence("Apache-2.0")}},
        "components": [*(file_component(f) for f in files), *components.values()],
        "dependencies": [{"ref": "sluice", "dependsOn": sorted(components[n]["bom-ref"] for n in direct)}],
    }
    bom["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bom, sort_keys=True)).urn
    pathlib.Path(f"sluice-{version}.cdx.json").write_text(json.dumps(bom, indent=1) + "\n")


if __name__ == "__main__":
    main()
