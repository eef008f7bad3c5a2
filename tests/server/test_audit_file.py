"""The file of the audit log: one line per entry, for its owner only, of bounded size."""

import logging
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.api.audit import LOGGER_NAME, to_logger
from moldau.server import audit_file
from moldau.server.audit_file import FILES_MAX, keep_audit_log

pytestmark = pytest.mark.inprocess


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    """As it was before, after each test."""
    found = logging.getLogger(LOGGER_NAME)
    before = list(found.handlers), found.level, found.propagate
    yield found
    for handler in found.handlers:
        handler.close()
    found.handlers[:], found.propagate = before[0], before[2]
    found.setLevel(before[1])


def test_there_is_no_file_before_the_first_entry(tmp_path: Path) -> None:
    keep_audit_log(tmp_path)
    assert list(tmp_path.iterdir()) == []
    to_logger('{"allowed":false}')
    to_logger('{"allowed":true}')
    assert (tmp_path / "audit.log").read_text() == '{"allowed":false}\n{"allowed":true}\n'


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    keep_audit_log(tmp_path)
    to_logger("{}")
    assert stat.S_IMODE((tmp_path / "audit.log").stat().st_mode) == 0o600


def test_a_restart_appends(tmp_path: Path) -> None:
    for line in ("1", "2"):
        keep_audit_log(tmp_path)
        to_logger(line)
    assert (tmp_path / "audit.log").read_text() == "1\n2\n"


def test_old_entries_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_file, "FILE_BYTES_MAX", 100)
    keep_audit_log(tmp_path)
    for number in range(100 * FILES_MAX):
        to_logger(f"{number:020}")
    files = sorted(tmp_path.iterdir())
    assert len(files) == FILES_MAX
    assert all(each.stat().st_size <= 100 for each in files)
    assert (tmp_path / "audit.log").read_text().endswith(f"{100 * FILES_MAX - 1:020}\n")


def test_entries_do_not_depend_on_the_level_of_other_logs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep_audit_log(tmp_path)
    with caplog.at_level("ERROR"):
        to_logger("{}")
    assert caplog.records == []
    assert (tmp_path / "audit.log").read_text() == "{}\n"


def test_a_file_that_cannot_be_written_is_reported_with_the_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "audit.log").mkdir()
    keep_audit_log(tmp_path)
    to_logger('{"allowed":false}')
    (record,) = caplog.records
    assert "cannot write the audit log" in record.getMessage()
    assert '{"allowed":false}' in record.getMessage()
