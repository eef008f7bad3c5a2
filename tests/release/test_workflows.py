"""The workflows of the forge: valid by their schema, and about targets and Pythons that exist."""

import re
import tomllib
from pathlib import Path

import pytest
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEXT = "".join(path.read_text() for path in WORKFLOWS)


def schema_problems(path: Path) -> str:
    done = CliRunner().invoke(
        check_jsonschema, ["--builtin-schema", "vendor.github-workflows", str(path)]
    )
    return done.output if done.exit_code else ""


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_valid_by_its_schema(path: Path) -> None:
    assert schema_problems(path) == ""


def test_a_mistake_is_seen(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text().replace("runs-on", "runs_on"))
    assert "runs_on" in schema_problems(wrong) or "$.jobs" in schema_problems(wrong)


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"run: make ([a-z-]+)", TEXT)
    assert {"test", "test-quick", "site", "dist", "release-check"} <= set(named)
    assert set(named) <= targets


def test_programs_of_tests_that_are_no_python_packages_are_installed() -> None:
    """make installs them for root only, which the runner is not."""
    (programs,) = re.findall(
        r"^\.PHONY: (.*chromium.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    (installed,) = re.findall(r"apt-get install -y --no-install-recommends (.*)", TEXT)
    # A browser is part of the runner's image.
    assert set(programs.split()) - {"chromium"} == set(installed.split())


def test_the_matrix_has_the_first_python_that_the_package_allows_and_those_it_claims() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    for tested in re.findall(r"^ +python: \[(.*)\]$", TEXT, re.MULTILINE):
        versions = re.findall(r"3\.\d+", tested)
        assert project["requires-python"] == f">={versions[0]}"
        assert set(claimed) <= set(versions)


def test_only_the_job_that_publishes_may_ask_for_an_identity() -> None:
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    jobs = re.split(r"^  (?=\w+:$)", release, flags=re.MULTILINE)
    assert [job.split(":")[0] for job in jobs if "id-token: write" in job] == ["publish"]
    assert "password" not in release.replace("there is no password", "")
