"""aider, the command line: it edits a file of a git repository, runs a check, repairs what the check says and commits each step; by blocks
that replace, by whole files, by diffs, and with a model that plans before one that edits; whole and streamed."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

BEFORE = 'def greet(name):\n    return "Hello"\n'
WRONG, RIGHT = '    return "Hello " + nam\n', '    return "Hello " + name\n'
CHECK = 'import greet\ntry:\n    assert greet.greet("Ada") == "Hello Ada"\nexcept NameError as e:\n    raise SystemExit(f"#wrong {e}")\n'
TASK = "#greet people by their names."
COMMIT = "fix: greet by name"
LINES = [BEFORE.splitlines(keepends=True)[1], WRONG, RIGHT]


def block(old, new):
    return f"I edit it.\n\ngreet.py\n```python\n<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n```"


def whole(_, new):
    return f"I edit it.\n\ngreet.py\n```\ndef greet(name):\n{new}```"


def diff(old, new):
    return f"I edit it.\n\n```diff\n--- greet.py\n+++ greet.py\n@@ ... @@\n-{old}+{new}```"


def script(edit, plan):
    """What the model says to the task, as the editor of a plan, to what the check says, and to a question for the message of a commit."""
    first, second = edit(*LINES[:2]), edit(*LINES[1:])
    return ["Nothing.", ("#greet", "Return the name, too." if plan else first),
            ("Act as an expert software developer who edits", first), ("#wrong", second), ("one-line Git commit messages", COMMIT)]


@pytest.fixture
def git(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()

    def run(*words):
        return subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@localhost", *words], cwd=folder, check=True, text=True,
                              capture_output=True).stdout

    run("init", "-q")
    (folder / "greet.py").write_text(BEFORE)
    (folder / "check.py").write_text(CHECK)
    run("add", ".")
    run("commit", "-q", "-m", "first")
    run.folder = folder
    return run


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
@pytest.mark.parametrize("how", ["diff", "whole", "udiff", "architect"])
def test_a_task(make, git, tmp_path, how, stream):
    edit = {"whole": whole, "udiff": diff}.get(how, block)
    server = make(script(edit, how == "architect"))
    costs = tmp_path / "costs.json"  # what it would look for elsewhere
    costs.write_text(json.dumps({"openai/m": {"max_input_tokens": 32000, "max_output_tokens": 4096, "input_cost_per_token": 0,
                                              "output_cost_per_token": 0, "litellm_provider": "openai", "mode": "chat"}}))
    formats = ["--architect", "--editor-edit-format", "editor-diff"] if how == "architect" else ["--edit-format", how]
    done = subprocess.run(
        [pathlib.Path(sys.executable).with_name("aider"), "--model", "openai/m", "--openai-api-base", server.v1, "--openai-api-key", "none",
         "--model-metadata-file", costs, *formats, stream, "--yes-always", "--no-show-model-warnings", "--no-check-update", "--no-analytics",
         "--no-gitignore", "--map-tokens", "0", "--no-auto-lint", "--auto-test", "--test-cmd", f"{sys.executable} -B check.py",
         "--message", TASK, "greet.py"],
        cwd=git.folder, text=True, capture_output=True, timeout=300, stdin=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(tmp_path), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "GIT_AUTHOR_NAME": "A", "GIT_COMMITTER_NAME": "A",
             "GIT_AUTHOR_EMAIL": "a@localhost", "GIT_COMMITTER_EMAIL": "a@localhost"})
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert (git.folder / "greet.py").read_text() == BEFORE.replace(LINES[0], RIGHT), said
    assert git("log", "--format=%s").splitlines() == [COMMIT, COMMIT, "first"], said
    assert subprocess.run([sys.executable, "-B", "check.py"], cwd=git.folder, check=False).returncode == 0
