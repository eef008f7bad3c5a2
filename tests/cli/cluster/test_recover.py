"""`moldau cluster recover` on the directory of a broker that does not run."""

import json
from pathlib import Path

import click
import pytest
from recovery_directory import CLUSTER_ID, fill_directory

from moldau.cli.main import run
from moldau.cli.output import confirm_by_word
from moldau.log.datadir import DirectoryLock, read_identity
from moldau.log.os_filesystem import OsFiles
from moldau.model.exit_codes import ExitCode

pytestmark = pytest.mark.inprocess


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    fill_directory(OsFiles(path))
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def cluster_id(data_dir: Path) -> str | None:
    identity = read_identity(OsFiles(data_dir))
    assert identity is not None
    return identity.cluster_id


def recover(*words: str | Path) -> int:
    return run(["cluster", "recover", *map(str, words)])


@pytest.fixture
def plan(data_dir: Path, tmp_path: Path) -> Path:
    survey, plan = tmp_path / "survivor-1.json", tmp_path / "plan.json"
    assert recover("collect", "--data-dir", data_dir, "--file", survey) == ExitCode.OK
    assert recover("plan", survey, "--lost", "2,3", "--file", plan) == ExitCode.OK
    return plan


def test_collect_and_plan_change_nothing_in_the_directory(data_dir: Path, tmp_path: Path) -> None:
    before = contents(data_dir)
    survey = tmp_path / "survivor-1.json"
    assert recover("collect", "--data-dir", data_dir, "--file", survey) == ExitCode.OK
    assert recover("plan", survey, "--lost", "2", "--lost", "3", "--file", tmp_path / "p") == 0
    assert contents(data_dir) == before
    assert json.loads(survey.read_text())["broker_id"] == 1


def test_the_plan_says_what_is_lost(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    survey, plan = tmp_path / "survivor-1.json", tmp_path / "plan.json"
    assert recover("collect", "--data-dir", data_dir, "--file", survey) == ExitCode.OK
    assert recover("plan", survey, "--lost", "2,3", "--file", plan) == ExitCode.OK
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines()] == [
        ["TOPIC", "PARTITIONS", "COMPLETE", "FROM", "ONE", "REPLICA", "EMPTY", "OFFLINE"],
        ["t", "3", "0", "2", "1", "0"],
    ]
    assert "2 partitions to continue from one replica" in err
    assert "t-0, t-1" in err
    assert (
        "1 partition without any replica: all records are lost, it begins again as empty: t-2"
        in err
    )
    assert json.loads(plan.read_text())["lost"] == [2, 3]


def test_a_plan_is_not_written_over(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = plan.read_bytes()
    words = ("plan", tmp_path / "survivor-1.json", "--lost", "2,3")
    assert recover(*words, "--file", plan) == ExitCode.FAILED
    assert "must be applied to all" in capsys.readouterr().err
    assert plan.read_bytes() == before
    assert recover(*words, "--file", tmp_path / "other.json") == ExitCode.OK


def test_apply_asks_first(plan: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(data_dir)
    assert recover("apply", plan, "--data-dir", data_dir) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert "2 partitions without a majority" in err
    assert "confirm with -y" in err
    assert contents(data_dir) == before


def test_apply_is_done_once(plan: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster_id(data_dir) == CLUSTER_ID
    assert recover("apply", plan, "--data-dir", data_dir, "-y") == ExitCode.OK
    assert cluster_id(data_dir) == json.loads(plan.read_text())["new_cluster_id"]
    assert recover("apply", plan, "--data-dir", data_dir) == ExitCode.OK
    assert "nothing to do" in capsys.readouterr().err


def test_a_directory_in_use_is_refused(
    plan: Path, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = DirectoryLock(data_dir)
    lock.acquire()
    try:
        found = tmp_path / "again.json"
        assert recover("collect", "--data-dir", data_dir, "--file", found) == ExitCode.CONFIG
        assert not found.exists()
        assert recover("apply", plan, "--data-dir", data_dir, "-y") == ExitCode.CONFIG
    finally:
        lock.release()
    assert capsys.readouterr().err.count("in use by another broker") == 2


def test_what_is_no_survey_plan_or_directory_is_refused_with_the_next_step(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert recover("plan", other, "--lost", "2", "--file", tmp_path / "p") == ExitCode.FAILED
    assert "make one: moldau cluster recover collect" in capsys.readouterr().err
    assert recover("apply", other, "--data-dir", data_dir) == ExitCode.FAILED
    assert "not a plan of a recovery" in capsys.readouterr().err
    assert recover("collect", "--data-dir", tmp_path, "--file", tmp_path / "s") == ExitCode.CONFIG
    assert "is not the data directory of a broker" in capsys.readouterr().err
    assert recover("plan", tmp_path / "none", "--lost", "2", "--file", tmp_path / "p") != 0
    assert "none: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(("typed", "goes_on"), [("recover", True), ("y", False), ("", False)])
def test_the_word_has_to_be_typed(
    monkeypatch: pytest.MonkeyPatch, typed: str, goes_on: bool
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("click.prompt", lambda *words, **options: typed)
    if goes_on:
        confirm_by_word("Sure?", "recover", yes=False)
    else:
        with pytest.raises(click.Abort):
            confirm_by_word("Sure?", "recover", yes=False)
