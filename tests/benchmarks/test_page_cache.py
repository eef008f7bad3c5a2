import os
from pathlib import Path

from benchmarks.page_cache import drop, is_cached


def test_logs_are_counted_and_other_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "0.index").write_bytes(bytes(100_000))
    assert drop([tmp_path]) == 0
    log = tmp_path / "topic" / "0.log"
    log.parent.mkdir()
    log.write_bytes(bytes(3_000_000))
    number = os.open(log, os.O_RDONLY)
    try:
        assert is_cached(number, 0)
        assert drop([tmp_path]) == is_cached(number, 0)
        # Whatever was dropped is there again after a read.
        os.pread(number, 1, 0)
        assert is_cached(number, 0)
    finally:
        os.close(number)
