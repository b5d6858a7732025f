"""packaging/version.py: one version for program, packages and wheel, from git's tags, or from what an archive brings; and what builds of a
work tree say, which name no commit."""

import pathlib
import shutil
import subprocess
import sys

import pytest
from packaging.version import Version

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import served  # noqa: E402

FILES = ["packaging/version.py", "CMakeLists.txt", "VERSION", ".gitattributes"]


class Tree:
    """A work tree with what makes a version, one commit, no tag."""

    def __init__(self, folder):
        self.folder = folder
        for name in FILES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        lines = (folder / "CMakeLists.txt").read_text().splitlines()
        (folder / "CMakeLists.txt").write_text("\n".join("project(sluice VERSION 0.7.1 LANGUAGES C)" if x.startswith("project(") else x for x in lines))
        self.git("init", "-q")
        self.git("add", ".")
        self.commit()

    def git(self, *words):
        who = ["-c", "user.name=a tester", "-c", "user.email=tester@sluice.invalid", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"]
        return subprocess.run(["git", *who, *words], cwd=self.folder, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self):
        self.git("commit", "-q", "--allow-empty", "-m", "a change")

    def hash(self):
        return "g" + self.git("rev-parse", "HEAD")[:8]

    def version(self, folder=None):
        return subprocess.run([sys.executable, (folder or self.folder) / "packaging" / "version.py"], check=True, capture_output=True, text=True,
                              cwd="/").stdout.strip()

    def archive(self, folder):
        folder.mkdir()
        data = subprocess.run(["git", "archive", "HEAD"], cwd=self.folder, check=True, capture_output=True).stdout
        subprocess.run(["tar", "x"], cwd=folder, check=True, input=data)
        return folder


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tree").mkdir()
    return Tree(tmp_path / "tree")


def test_without_a_tag(tree, tmp_path):
    assert tree.version() == f"0.7.1+{tree.hash()}" == tree.version(tree.archive(tmp_path / "archive"))
    (tree.folder / "a file").touch()
    assert tree.version() == f"0.7.1+{tree.hash()}"  # git does not know it
    with (tree.folder / "CMakeLists.txt").open("a") as f:
        f.write("\n# changed\n")
    assert tree.version() == f"0.7.1+{tree.hash()}.dirty"


@pytest.mark.parametrize("how", [["tag"], ["tag", "-m", "a release"]], ids=["light", "annotated"])
def test_at_a_tag_and_behind_it(tree, tmp_path, how):
    tree.git(*how, "v1.2.10")
    assert tree.version() == "1.2.10" == tree.version(tree.archive(tmp_path / "archive"))
    for name in ("later", "v2.0.0-rc1", "v3"):
        tree.git("tag", name)  # no releases
    assert tree.version() == "1.2.10"
    tree.commit()
    tree.commit()
    assert tree.version() == f"1.2.10+2.{tree.hash()}" == tree.version(tree.archive(tmp_path / "behind"))
    with (tree.folder / "CMakeLists.txt").open("a") as f:
        f.write("\n# changed\n")
    assert tree.version() == f"1.2.10+2.{tree.hash()}.dirty"


def test_where_nobody_knows(tree, tmp_path):
    plain = tmp_path / "plain"
    shutil.copytree(tree.folder, plain, ignore=shutil.ignore_patterns(".git"))
    assert tree.version(plain) == "0.7.1+unknown"
    inside = tree.folder / "inside"  # of somebody else's work tree
    shutil.copytree(plain, inside)
    assert tree.version(inside) == "0.7.1+unknown"


def test_package_formats_take_and_order_them():
    rising = ["0.1.0", "0.1.0+g1a2b3c4d", "0.1.0+g1a2b3c4d.dirty", "0.1.1", "0.1.1+2.g1a2b3c4d", "0.1.1+10.g1a2b3c4d", "0.2.0"]
    assert [str(Version(v)) for v in rising] == rising == sorted(rising, key=Version)
    if not shutil.which("dpkg"):
        pytest.skip("dpkg is not there")
    for a, b in zip(rising, rising[1:]):
        assert subprocess.run(["dpkg", "--compare-versions", a, "lt", b], check=False).returncode == 0, (a, b)


def test_builds_of_a_work_tree_name_no_commit():
    """Else every commit would link the program, and run all tests, anew."""
    said = subprocess.run([served.SLUICE, "--version"], check=True, capture_output=True, text=True).stdout
    here = (ROOT / "CMakeLists.txt").read_text().split("project(sluice VERSION ")[1].split()[0]
    assert said == f"sluice {here}+dev\n"
    assert f'"sluice {here}+dev"' in subprocess.run([served.SLUICE, "manual", "man"], check=True, capture_output=True, text=True).stdout.splitlines()[0]
