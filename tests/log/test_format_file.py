"""The format of a data directory: an older broker refuses a newer one, and changes nothing."""

import json
from pathlib import Path

import pytest

from moldau.log.format_file import DATA_FORMAT, FORMAT_FILE, check_format, write_format
from moldau.log.os_filesystem import OsFiles
from moldau.model.errors import ConfigError, CorruptionError


def test_a_directory_without_the_file_is_of_the_first_versions(tmp_path: Path):
    files = OsFiles(tmp_path)
    check_format(files)
    write_format(files)
    assert json.loads((tmp_path / FORMAT_FILE).read_bytes())["format"] == DATA_FORMAT
    check_format(files)


def test_a_directory_of_a_newer_version_is_refused_with_the_version_to_install(tmp_path: Path):
    written = json.dumps({"format": DATA_FORMAT + 1, "written_by": "9.1.0", "more": True})
    (tmp_path / FORMAT_FILE).write_text(written)
    with pytest.raises(ConfigError, match=r"install moldau 9\.1\.0 or newer"):
        check_format(OsFiles(tmp_path))
    assert (tmp_path / FORMAT_FILE).read_text() == written


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"format": "x", "written_by": 1}'])
def test_a_damaged_file_is_not_guessed_at(tmp_path: Path, content: str):
    (tmp_path / FORMAT_FILE).write_text(content)
    with pytest.raises(CorruptionError, match="Nothing was changed"):
        check_format(OsFiles(tmp_path))
