"""Without the extra for Spark, commands about pipelines say how to get it."""

import sys

import pytest

from moldau.cli.errors import ExitCode
from moldau.cli.main import run


@pytest.mark.parametrize(
    "words",
    [
        ("run", "archive", "--topic", "clicks", "--to", "lake"),
        ("delete", "archive-clicks", "-y"),
        ("reset", "archive-clicks", "--to", "latest", "-y"),
    ],
)
def test_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    # As if the package were not there.
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert run(["pipeline", *words]) != ExitCode.OK
    said = capsys.readouterr().err
    assert "error: the Python package pyarrow is not installed" in said
    assert "moldau[spark]" in said
