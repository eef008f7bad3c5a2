"""The bundle in the package is what the sources in console/ make, where Node can build it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
CONSOLE = ROOT / "console"
BUNDLE = ROOT / "src/moldau/edge/http/console/dist"


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, so that nothing is written beside the sources."""
    if shutil.which("npm") is None or not (CONSOLE / "node_modules/.bin/vite").exists():
        pytest.skip("no Node, or not the packages of the console; install them by make console")
    copy = tmp_path_factory.mktemp("copy") / "console"
    shutil.copytree(CONSOLE, copy, ignore=shutil.ignore_patterns("node_modules"))
    (copy / "node_modules").symlink_to(CONSOLE / "node_modules")
    return copy


def run(sources: Path, *words: str) -> None:
    done = subprocess.run(words, cwd=sources, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_bundle_is_built_from_these_sources(sources: Path, tmp_path: Path) -> None:
    run(sources, "npx", "vite", "build", "--outDir", str(tmp_path / "dist"), "--logLevel", "warn")
    built, committed = files(tmp_path / "dist"), files(BUNDLE)
    assert sorted(built) == sorted(committed), "run make console, and commit the bundle"
    assert built == committed, "run make console, and commit the bundle"


def test_the_types_are_those_of_the_openapi_document(sources: Path, tmp_path: Path) -> None:
    schemas, made = tmp_path / "schemas.json", tmp_path / "schema.ts"
    command = [sys.executable, "-m", "moldau.edge.http.openapi"]
    schemas.write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    run(sources, "npx", "openapi-typescript", str(schemas), "-o", str(made), "--alphabetize")
    committed = (CONSOLE / "src/api/schema.ts").read_text()
    assert made.read_text() == committed, "run make console, and commit console/src/api/schema.ts"


def test_types_and_rules_of_the_pages_hold(sources: Path) -> None:
    run(sources, "npm", "run", "--silent", "check")


def test_the_parts_without_a_browser_hold(sources: Path) -> None:
    run(sources, "npm", "test", "--silent")
