"""The secret of a cluster in the data directory."""

import os
import stat

import pytest

from moldau.log.os_filesystem import REPLACEMENT_SUFFIX, OsFiles
from moldau.log.secret_file import (
    SECRET_BYTES,
    ClusterSecret,
    decode_secret,
    read_secret,
    write_secret,
)
from moldau.model.errors import CorruptionError
from moldau.model.layout import SECRET_FILE

SECRET = bytes(range(SECRET_BYTES))


def test_it_is_read_as_it_was_written_and_by_its_owner_alone(tmp_path):
    files = OsFiles(tmp_path)
    assert read_secret(files) is None
    # Of a start that was killed, by a version with other modes.
    leftover = tmp_path / (SECRET_FILE + REPLACEMENT_SUFFIX)
    leftover.write_bytes(b"")
    leftover.chmod(0o666)
    write_secret(files, ClusterSecret(SECRET))
    assert read_secret(files) == ClusterSecret(SECRET)
    assert stat.S_IMODE(os.stat(tmp_path / SECRET_FILE).st_mode) == 0o600
    assert not leftover.exists()


def test_while_it_is_changed_the_file_has_the_earlier_one_too(tmp_path):
    files = OsFiles(tmp_path)
    both = ClusterSecret(b"n" * SECRET_BYTES, SECRET)
    write_secret(files, both)
    found = read_secret(files)
    assert found == both
    assert both != ClusterSecret(both.value)
    lines = (tmp_path / SECRET_FILE).read_bytes().splitlines(keepends=True)
    assert decode_secret(lines[0]) == ClusterSecret(both.value)
    for wrong in ([*lines, lines[0]], [lines[0], b"x\n"], [b"x\n", lines[1]]):
        with pytest.raises(CorruptionError):
            decode_secret(b"".join(wrong))


def test_a_damaged_one_is_refused_and_not_shown(tmp_path):
    files = OsFiles(tmp_path)
    write_secret(files, ClusterSecret(SECRET))
    path = tmp_path / SECRET_FILE
    content = path.read_bytes()
    assert decode_secret(content + b"\n") == ClusterSecret(SECRET)
    damaged = [content[:cut] for cut in range(len(content) - 1)]
    for position in range(len(content) - 1):
        changed = bytearray(content)
        changed[position] ^= 2
        damaged.append(bytes(changed))
    for wrong in damaged:
        path.write_bytes(wrong)
        with pytest.raises(CorruptionError, match="it is damaged; copy the file") as caught:
            read_secret(files)
        assert SECRET.hex()[:16] not in str(caught.value)
