"""The demo says in one line what it lacks, and ends what it started."""

import argparse
import contextlib
import importlib.util
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipeline_words import settings_from

import demo.__main__ as main_module
from demo.commands import FailedError, Moldau, end
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


def test_a_missing_package_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "pyspark" else object(),
    )
    assert main_module.main([]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: the Python package pyspark is missing")
    assert "moldau[spark]" in said
    assert len(said.splitlines()) == 1


def test_a_missing_java_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main_module.main([]) == 1
    assert "JAVA_HOME" in capsys.readouterr().err


@pytest.fixture
def handlers() -> Iterator[dict[int, object]]:
    """What the process does with the signals that end the demo, told apart from any other."""

    def handle(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    yield dict.fromkeys(before, handle)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (FailedError("no", "why"), 1)]
)
def test_what_was_started_is_ended_whatever_happens(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    handlers: dict[int, object],
    error: BaseException,
    code: int,
) -> None:
    ended: list[str] = []

    class Broken:
        def __init__(self, told: object, folder: Path, closing: contextlib.ExitStack) -> None:
            self._closing = closing

        def run(self) -> int:
            self._closing.callback(ended.append, "cluster")
            self._closing.callback(ended.append, "pipeline")
            raise error

    monkeypatch.setattr(main_module, "Demo", Broken)
    assert main_module.play(argparse.Namespace(), tmp_path) == code
    assert ended == ["pipeline", "cluster"]
    assert {number: signal.getsignal(number) for number in handlers} == handlers


def test_a_command_that_fails_says_what_it_printed() -> None:
    moldau = Moldau({})
    with pytest.raises(FailedError, match="ended with code") as failed:
        moldau.run("no-such-command")
    assert "no such command" in failed.value.said
    assert moldau.quietly("no-such-command") != 0


@pytest.mark.parametrize(("deaf", "code"), [(False, -signal.SIGTERM), (True, -signal.SIGKILL)])
def test_a_process_is_ended_in_order_or_by_force(deaf: bool, code: int) -> None:
    told = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if deaf else ""
    text = f"import signal; {told}print('here', flush=True); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        assert end(process, seconds_max=0.2 if deaf else wait_seconds_max()) == code


def test_the_help_says_how_long_it_takes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--help"],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
    )
    assert done.returncode == 0
    assert "--seconds" in done.stdout


@pytest.mark.parametrize(
    "command",
    [
        main_module.archive_command(Path("/lake")),
        main_module.aggregate_command(),
        main_module.audit_command(Path("/lake")),
    ],
    ids=lambda command: command[0],
)
def test_the_pipelines_take_the_options_of_the_demo(command: tuple[str, ...]) -> None:
    pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
    kind, *words = command
    assert settings_from(kind, words).kind == kind
