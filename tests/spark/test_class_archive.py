"""The archive of Spark's classes: when it is used, when it is made, and that it never does harm."""

import fcntl
import os
import shlex
import subprocess
import threading
import time
from pathlib import Path

import pytest

from moldau.spark import class_archive
from moldau.spark.class_archive import SWITCH, ClassArchive, archive_for
from moldau.spark.java import Java, JavaError, find_java
from moldau.testing.waiting import wait_seconds_max

pytestmark = pytest.mark.system


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    java = Java(home=Path("/jvm"), major=17, build="17.0.1+1", origin="a test")
    return archive_for(java, tmp_path / "cache")


@pytest.fixture
def dumps(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was dumped, by something that takes its time and needs no Spark."""
    done: list[Path] = []

    def dump(self: ClassArchive, part: Path) -> None:
        time.sleep(0.05)
        part.write_bytes(b"classes")
        done.append(part)

    monkeypatch.setattr(ClassArchive, "_dump", dump)
    monkeypatch.setattr(ClassArchive, "_make_base", lambda self: None)
    return done


def test_java_is_told_of_an_archive_only_if_it_is_there(archive: ClassArchive) -> None:
    assert archive.options() == ""
    archive.path.parent.mkdir()
    archive.path.write_bytes(b"classes")
    archive.sum.write_text(class_archive._sum(archive.path))
    assert f'"-XX:SharedArchiveFile={archive.path}"' in archive.options()
    assert "-Xshare:auto" in archive.options()


def test_a_switch_turns_it_off(
    archive: ClassArchive, dumps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert archive.is_wanted()
    archive.make()
    assert archive.options() != ""
    monkeypatch.setenv(SWITCH, "off")
    assert archive.options() == ""
    archive.path.unlink()
    assert not archive.is_wanted()


def test_another_java_or_another_spark_has_another_archive(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = archive.path.parent
    other = Java(home=Path("/jvm"), major=17, build="17.0.2+1", origin="a test")
    assert archive_for(other, cache).path != archive.path
    assert archive_for(archive.java, cache).path == archive.path
    monkeypatch.setenv("SPARK_HOME", "/another/spark")
    assert archive_for(archive.java, cache).path != archive.path


def test_with_a_folder_of_settings_there_is_none(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert archive.is_wanted()
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert not archive.is_wanted()
    assert archive.options() == ""


def test_what_was_left_half_done_is_removed(archive: ClassArchive, dumps: list[Path]) -> None:
    archive.path.parent.mkdir()
    left = archive.path.with_suffix(".4711.part")
    left.write_bytes(b"half")
    assert archive.make()
    assert not left.exists()


def test_it_is_made_once(archive: ClassArchive, dumps: list[Path]) -> None:
    assert archive.is_wanted()
    assert archive.make()
    assert archive.path.read_bytes() == b"classes"
    assert not archive.is_wanted()
    assert archive.make()
    assert len(dumps) == 1
    assert not dumps[0].exists()


def test_of_several_who_make_it_at_once_one_does(archive: ClassArchive, dumps: list[Path]) -> None:
    threads = [threading.Thread(target=archive.make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(dumps) == 1
    assert archive.path.read_bytes() == b"classes"


def test_while_another_process_makes_it_nothing_is_done(
    archive: ClassArchive, dumps: list[Path]
) -> None:
    archive.path.parent.mkdir()
    with archive.path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not archive.make()
    assert dumps == []
    assert archive.make()


def test_after_a_failure_it_is_left_for_a_week(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dump(self: ClassArchive, part: Path) -> None:
        part.write_bytes(b"half of the cla")
        raise subprocess.CalledProcessError(1, ["java"], stderr=b"out of memory")

    monkeypatch.setattr(ClassArchive, "_dump", dump)
    monkeypatch.setattr(ClassArchive, "_make_base", lambda self: None)
    assert not archive.make()
    assert "out of memory" in archive.failure.read_text()
    assert archive.options() == ""
    assert sorted(path.suffix for path in archive.path.parent.iterdir()) == [".failed", ".lock"]
    assert not archive.is_wanted()
    long_ago = time.time() - 8 * 24 * 3600
    os.utime(archive.failure, (long_ago, long_ago))
    assert archive.is_wanted()


def test_it_is_made_by_a_process_that_nobody_waits_for(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, object]] = []
    monkeypatch.setattr(
        class_archive.subprocess, "Popen", lambda command, **more: started.append(more)
    )
    archive.make_later()
    assert len(started) == 1
    assert started[0]["start_new_session"] is True
    assert started[0]["cwd"] == archive.path.parent
    archive.path.write_bytes(b"classes")
    archive.sum.write_text(class_archive._sum(archive.path))
    archive.make_later()
    assert len(started) == 1


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    java = Java(home=Path("/jvm"), major=17, build="17.0.1+1", origin="a test")
    archive = archive_for(java, tmp_path / "file" / "cache")
    assert archive.options() == ""
    archive.make_later()


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "gone"])
def test_a_damaged_archive_is_not_used_and_made_again(
    archive: ClassArchive, dumps: list[Path], damage: str
) -> None:
    archive.make()
    if damage == "gone":
        archive.sum.unlink()
    else:
        archive.path.write_bytes({"cut": b"class", "changed": b"cla\x00ses", "empty": b""}[damage])
    assert archive.options() == ""
    assert archive.is_wanted()
    assert archive.make()
    assert archive.path.read_bytes() == b"classes"
    assert archive.options() != ""


@pytest.mark.parametrize("content", [b"", b"\x00\xff" * 50_000, b"classes of another Java"])
def test_what_is_no_archive_stops_no_java_and_makes_no_noise(
    tmp_path: Path, content: bytes
) -> None:
    try:
        java = find_java()
    except JavaError as error:
        pytest.skip(f"{error}: no test of archives with it")
    archive = ClassArchive(java=java, path=tmp_path / "classes.jsa")
    archive.path.write_bytes(content)
    archive.sum.write_text(class_archive._sum(archive.path))
    told = shlex.split(archive.options())
    assert len(told) > 1
    done = subprocess.run(
        [java.program, *told, "-version"],
        capture_output=True,
        text=True,
        timeout=wait_seconds_max(),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.splitlines()[0] == java.build.splitlines()[0]
    assert done.stdout == ""
