"""What the forge is told about a release, by the commands of its workflow."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("tag", "is_candidate"), [("v1.2.3", False), ("v1.2.3rc1", True)])
def test_a_candidate_is_not_the_latest_release(
    tag: str, is_candidate: bool, tmp_path: Path
) -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    (command,) = (
        step["run"]
        for step in workflow["jobs"]["announce"]["steps"]
        if "gh release create" in step.get("run", "")
    )
    program = tmp_path / "gh"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", command],
        env={"PATH": path, "GITHUB_REF_NAME": tag},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.split()
    assert words[:3] == ["release", "create", tag]
    assert ("--prerelease" in words) == is_candidate
