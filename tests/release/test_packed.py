"""What is packed: the console that was built, and nothing that built it."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
DIST = "src/moldau/edge/http/console/dist"


def test_a_clone_with_the_packages_of_the_console_packs_its_bundle_alone(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    for folder in ("console", DIST):
        without = shutil.ignore_patterns("node_modules")
        shutil.copytree(ROOT / folder, clone / folder, ignore=without)
    for name in (".gitignore", "LICENSE", "README.md", "hatch_build.py", "pyproject.toml"):
        shutil.copy(ROOT / name, clone / name)
    shutil.copy(ROOT / "src/moldau/version.py", clone / "src/moldau/version.py")
    package = clone / "console/node_modules/left/index.js"
    package.parent.mkdir(parents=True)
    package.write_text("export const left = 1;\n")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=clone, capture_output=True, check=True)
    (packed,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"console/package.json", "console/src/main.ts", f"{DIST}/index.html"} <= names
    assert [name for name in names if "node_modules" in name] == []


def test_an_image_is_sent_the_bundle_and_nothing_of_the_console() -> None:
    """.dockerignore leaves out all but what it names."""
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [rule for rule in rules if rule and not rule.startswith("#")]
    assert rules[0] == "*"
    assert "!src" in rules
    assert [rule for rule in rules if "console" in rule or "dist" in rule] == []
