"""The token of the local administrator: one for all brokers of a cluster, and nobody else can read
it."""

import base64
import os
import stat
from pathlib import Path

import pytest

from moldau.server.admin_token import make_token, write_token


def test_a_token_is_readable_by_its_owner_alone_and_replaces_the_last_one(tmp_path: Path):
    previous = os.umask(0)
    try:
        for number in range(2):
            token = make_token(bytes([number]) * 32)
            assert write_token(tmp_path, token)
            assert (tmp_path / "admin.token").read_text() == token + "\n"
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "admin.token").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["admin.token"]


def test_brokers_with_the_same_secret_have_the_same_token_which_says_nothing_of_it():
    secret = bytes(range(32))
    token = make_token(secret)
    assert token == make_token(secret) != make_token(bytes(32))
    assert len(token) == 43
    assert base64.urlsafe_b64encode(secret).decode().rstrip("=") != token


def test_nothing_is_written_through_a_link(tmp_path: Path):
    target = tmp_path / "target"
    target.write_text("before")
    root = tmp_path / "data"
    root.mkdir()
    (root / "admin.new").symlink_to(target)
    (root / "admin.token").symlink_to(target)
    assert write_token(root, "token")
    assert target.read_text() == "before"
    assert (root / "admin.token").read_text() == "token\n"


def test_a_broker_that_cannot_write_it_does_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    assert not write_token(tmp_path / "missing", "planted-token")
    assert "no local administrator" in caplog.text
    assert "planted-token" not in caplog.text
