#!/usr/bin/env python3
"""packaging/Dockerfile without docker: its lines carried out in a folder that has what its FROM names.

  image.py build ROOT CONTEXT    COPY and RUN, as root
  image.py run ROOT [NAME=VALUE ..] [-- WORD ..]
                                 becomes ENTRYPOINT with CMD, or with these words in CMD's place, as USER with ENV
  image.py check ROOT [NAME=VALUE ..]
                                 becomes what HEALTHCHECK says

An instruction that it does not know is an error: nothing in the Dockerfile goes untested."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

DOCKERFILE = pathlib.Path(__file__).resolve().parents[1] / "packaging" / "Dockerfile"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def steps():
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def in_root(root, env, user=None):
    return ["chroot", *([f"--userspec={user}"] if user else []), str(root), "/usr/bin/env", "-i", *(f"{k}={v}" for k, v in env.items())]


def build(root, context):
    env = {"PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"}
    for what, words in steps():
        if what == "RUN":
            subprocess.run([*in_root(root, env), "/bin/sh", "-c", words], check=True)
        elif what == "COPY":
            *sources, to = words.split()
            found = [p for s in sources for p in pathlib.Path(context).glob(s)]
            assert found, f"COPY {words}: nothing is there"
            for p in found:
                shutil.copy(p, root / to.lstrip("/"))
        elif what == "ENV":
            env.update([words.split("=", 1)])


def settings():
    env, user, run = {"PATH": PATH}, None, {}
    for what, words in steps():
        if what == "ENV":
            env.update([words.split("=", 1)])
        elif what == "USER":
            user = words.strip()
        elif what in ("ENTRYPOINT", "CMD"):
            run[what] = json.loads(words)
        elif what == "HEALTHCHECK":
            run[what] = ["/bin/sh", "-c", words.removeprefix("CMD ")]
        elif what not in ("FROM", "COPY", "RUN", "EXPOSE"):
            sys.exit(f"{DOCKERFILE}: {what} is not known here")
    return env, user, run


def main():
    verb, root, rest = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    env, user, run = settings()
    if verb == "build":
        build(root, rest[0])
        return
    given, words = (rest[:rest.index("--")], rest[rest.index("--") + 1:]) if "--" in rest else (rest, run["CMD"])
    env |= dict(g.split("=", 1) for g in given)
    command = run["HEALTHCHECK"] if verb == "check" else [*run["ENTRYPOINT"], *words]
    command = [*in_root(root, env, user), *command]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
