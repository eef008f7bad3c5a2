"""The machine that a data directory keeps."""

import errno
import logging
from pathlib import Path

import pytest

from moldau.server.config.schema import ServerConfig
from moldau.server.machine import Machine
from moldau.server.storage import Storage


class Container(Machine):
    """Has another host name at each start."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def host_name(self) -> str:
        return self.name


def machine_at(root: Path, host_name: str, machine: str | None = None) -> str:
    config = ServerConfig(data_dir=str(root), machine=machine)
    storage = Storage.open(config, Container(host_name))
    try:
        return storage.machine_name
    finally:
        storage.close()


def test_a_host_name_that_changes_moves_no_broker_to_another_machine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert machine_at(tmp_path, "one") == "one"
    assert machine_at(tmp_path, "one") == "one"
    assert "machine" not in caplog.text
    assert machine_at(tmp_path, "two") == "one"
    assert "the machine of this broker is one, as at its first start" in caplog.text
    assert machine_at(tmp_path / "other", "two") == "two"


def test_a_full_disk_is_no_reason_not_to_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("moldau.server.storage.keep_machine", full)
        assert machine_at(tmp_path, "one") == "one"
    assert "the name of this machine is not stored now: [Errno 28] No space" in caplog.text
    assert machine_at(tmp_path, "two") == "two"
    assert machine_at(tmp_path, "three") == "two"


def test_what_the_configuration_says_comes_first_and_is_not_kept(tmp_path: Path) -> None:
    assert machine_at(tmp_path, "one", machine="node-7") == "node-7"
    assert machine_at(tmp_path, "two") == "two"
    assert machine_at(tmp_path, "three", machine="node-8") == "node-8"
    assert machine_at(tmp_path, "three") == "two"


def test_a_host_without_a_name_and_an_empty_file_keep_nothing(tmp_path: Path) -> None:
    assert machine_at(tmp_path, "") == ""
    (tmp_path / "machine").write_text("\n")
    assert machine_at(tmp_path, "one") == "one"
    assert machine_at(tmp_path, "two") == "one"
