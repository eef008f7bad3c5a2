"""One C compiler per core: a compiled hot path is ready in half the time on two."""

from pathlib import Path

import pytest

from release.hot_path import build

pytestmark = pytest.mark.system

METS = """#!/bin/sh
# A compiler that waits for another one to be at work.
for last; do case $before in -o) made=$last;; esac; before=$last; done
case "$made" in *.o) ;; *) echo linked > "$made"; exit 0;; esac
touch "$MET/$$"
for turn in $(seq 300); do
    [ "$(ls "$MET" | wc -l)" -ge 2 ] && { echo compiled > "$made"; exit 0; }
    sleep 0.1
done
exit 1
"""


def test_the_files_of_a_library_are_compiled_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setuptools = pytest.importorskip("setuptools")
    compiler, met = tmp_path / "cc", tmp_path / "met"
    met.mkdir()
    compiler.write_text(METS)
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("LDSHARED", str(compiler))
    monkeypatch.setenv("MET", str(met))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.chdir(tmp_path)
    for name in ("one.c", "two.c"):
        Path(name).write_text("")
    library = setuptools.Extension("both", ["one.c", "two.c"])
    (made,) = build([library], tmp_path / "made", tmp_path / "temporary")
    assert made.read_text() == "linked\n"
    assert len(list(met.iterdir())) == 2
