"""`make run` takes the compiled tree only while it is what the source says."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from release.hot_path import ROOT

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("make") is None, reason="there is no make"),
]


def tree_of(clone: Path) -> str:
    command = ["make", "-s", "--eval", "tree:;@echo '$(TREE)'", "tree"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_source_that_was_changed_deleted_or_renamed_is_run_interpreted(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    source, compiled = tmp_path / "src/moldau", tmp_path / "build/compiled"
    source.mkdir(parents=True)
    assert tree_of(tmp_path) == ""
    for name in ("kept.py", "gone.py"):
        (source / name).write_text("")
        os.utime(source / name, (1, 1))
    shutil.copytree(source, compiled / "moldau")
    assert tree_of(tmp_path) == str(compiled)

    (source / "gone.py").rename(source / "other.py")
    assert tree_of(tmp_path) == ""
    (source / "other.py").rename(source / "gone.py")
    assert tree_of(tmp_path) == str(compiled)

    os.utime(source / "kept.py")
    os.utime(compiled, (2, 2))
    assert tree_of(tmp_path) == ""
