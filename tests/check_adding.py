#!/usr/bin/env python3
"""What adding a thing takes, counted: for each row of the table under "Adding things" in docs/development.md the files of src/
outside the thing's own folder that name its example, which must be no more than the row says; and the files of src/ that the
example's own commit touched, which must be what the row says. Without that history the second count is skipped, with the
reason. Usage: check_adding.py ROOT. CTest house.adding."""
import pathlib
import re
import subprocess
import sys

ROW = re.compile(r"^\| ([\w ]+) \| `([^`]+)`(?:, in `([^`]+)`)? \| (\d+) \| (\d+), `([0-9a-f]{7,})` \|", re.M)


def naming(root, example, own):
    """Files of src/ that name the example; its own folder is what is added and counts for nothing."""
    files = [p.relative_to(root).as_posix() for p in sorted((root / "src").rglob("*.*"))]
    files = [f for f in files if f.endswith((".c", ".h", ".def")) and not (own and f.startswith(own))]
    comment = re.compile(r"/\*.*?\*/", re.S)
    return [f for f in files if re.search(example, comment.sub("", (root / f).read_text()))]


def touched(root, commit):
    """Files of src/ in that commit; None without it."""
    try:
        done = subprocess.run(["git", "show", "--name-only", "--format=", commit, "--", "src"], cwd=root, text=True,
                              capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return None if done.returncode else len(done.stdout.split())


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    rows = ROW.findall((root / "docs" / "development.md").read_text())
    bad = [] if len(rows) >= 5 else [f"docs/development.md: {len(rows)} rows of things to add, at least 5 expected"]
    for thing, example, own, now, then, commit in rows:
        files, was = naming(root, example.replace("\\|", "|"), own), touched(root, commit)
        if not files or len(files) > int(now):
            bad.append(f"{thing}: {len(files)} files name {example}, docs/development.md says {now}: {' '.join(files)}")
        if was is None:
            print(f"skipped: what {commit} touched: no such commit here (no history in this folder?)")
        elif was != int(then):
            bad.append(f"{thing}: {commit} touched {was} files of src, docs/development.md says {then}")
        print(f"{thing}: {len(files)} files ({then} when the example was added)")
    print("\n".join(bad))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
