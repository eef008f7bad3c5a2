"""Where a broker gets the secret of its cluster from."""

import os
import secrets
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.log.datadir import Identity, write_identity
from moldau.log.os_filesystem import OsFiles
from moldau.log.secret_file import ClusterSecret, read_secret, write_secret
from moldau.model.errors import ConfigError
from moldau.model.ids import BrokerId
from moldau.model.layout import SECRET_FILE
from moldau.server.cluster_secret import (
    JoinKey,
    give_secret,
    join_token,
    keep_first_secret,
    new_secret_file,
    read_join_token,
    read_local_secret,
    read_secret_file,
    rotate_secret,
)

SECRET = secrets.token_bytes(32)
TOKEN = "some-id." + "s" * 32
ONE, TWO = BrokerId(1), BrokerId(2)


def storage_of(directory: Path) -> Any:
    files = OsFiles(directory)
    return SimpleNamespace(
        read_secret=lambda: read_secret(files),
        write_secret=lambda secret: write_secret(files, secret),
    )


def directory_of(path: Path, secret: bytes | None = None) -> Path:
    """As of a broker."""
    path.mkdir()
    files = OsFiles(path)
    write_identity(files, Identity(broker_id=ONE, cluster_id="c", directory_id="d"))
    if secret is not None:
        write_secret(files, ClusterSecret(secret))
    return path


# ---- a directory without one


@pytest.mark.parametrize("brokers", [[], [ONE]])
def test_a_broker_without_others_gets_its_first_one(tmp_path: Path, brokers: list[BrokerId]):
    keep_first_secret(storage_of(tmp_path), ClusterSecret(SECRET), ONE, brokers)
    assert read_secret(OsFiles(tmp_path)) == ClusterSecret(SECRET)


def test_a_member_of_a_cluster_without_it_does_not_start_and_says_what_to_do(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"has no file cluster\.secret") as caught:
        keep_first_secret(storage_of(tmp_path), ClusterSecret(SECRET), ONE, [ONE, TWO])
    assert "moldau cluster secret create" in caught.value.hint
    assert read_secret(OsFiles(tmp_path)) is None


def test_one_that_is_there_stays(tmp_path: Path):
    write_secret(OsFiles(tmp_path), ClusterSecret(SECRET))
    keep_first_secret(storage_of(tmp_path), ClusterSecret(b"x" * 32), ONE, [ONE, TWO])
    assert read_secret(OsFiles(tmp_path)) == ClusterSecret(SECRET)


# ---- directories of older versions


def test_all_directories_get_the_same_and_one_that_is_there_is_kept(tmp_path: Path):
    one, two, three = (directory_of(tmp_path / name) for name in "123")
    written = give_secret([one, two])
    assert written == [one / SECRET_FILE, two / SECRET_FILE]
    assert stat.S_IMODE(os.stat(written[0]).st_mode) == 0o600
    assert give_secret([one, three]) == [three / SECRET_FILE]
    contents = {(path / SECRET_FILE).read_bytes() for path in (one, two, three)}
    assert len(contents) == 1
    assert give_secret([one, two, three]) == []


def test_what_is_no_data_directory_or_of_another_cluster_is_refused(tmp_path: Path):
    one = directory_of(tmp_path / "1")
    other = directory_of(tmp_path / "2", SECRET)
    another = directory_of(tmp_path / "3", b"x" * 32)
    empty = tmp_path / "4"
    empty.mkdir()
    with pytest.raises(ConfigError, match="is not the data directory"):
        give_secret([one, empty])
    with pytest.raises(ConfigError, match="different secrets"):
        give_secret([one, other, another])
    # Nothing was changed by what was refused.
    assert not (one / SECRET_FILE).exists()
    (other / SECRET_FILE).write_text("damaged")
    with pytest.raises(ConfigError, match="it is damaged"):
        give_secret([one, other])


# ---- a new one


def test_a_secret_is_changed_in_two_steps(tmp_path: Path):
    one, two = (directory_of(tmp_path / name, SECRET) for name in "12")
    written = rotate_secret([one, two], is_last=False)
    assert written == [one / SECRET_FILE, two / SECRET_FILE]
    both = read_secret(OsFiles(one))
    assert both is not None
    assert both.earlier == SECRET != both.value
    assert read_secret(OsFiles(two)) == both
    assert stat.S_IMODE(os.stat(written[0]).st_mode) == 0o600
    rotate_secret([one, two], is_last=True)
    assert read_secret(OsFiles(one)) == read_secret(OsFiles(two)) == ClusterSecret(both.value)


def test_a_step_that_is_not_due_changes_nothing(tmp_path: Path):
    one, bare = directory_of(tmp_path / "1", SECRET), directory_of(tmp_path / "2")
    with pytest.raises(ConfigError, match="no old one to remove"):
        rotate_secret([one], is_last=True)
    with pytest.raises(ConfigError, match=r"2 has no file cluster\.secret"):
        rotate_secret([one, bare], is_last=False)
    assert read_secret(OsFiles(one)) == ClusterSecret(SECRET)
    rotate_secret([one], is_last=False)
    both = read_secret(OsFiles(one))
    # By accident once more: brokers that were not restarted would be shut out.
    with pytest.raises(ConfigError, match="being changed already") as caught:
        rotate_secret([one], is_last=False)
    assert "--finish" in caught.value.hint
    assert read_secret(OsFiles(one)) == both


# ---- tokens


def test_a_token_comes_from_a_file(tmp_path: Path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    key = read_join_token(str(path))
    assert (key.token_id, key.value) == ("some-id", b"s" * 32)
    assert "sss" not in repr(key)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff\xfe", TOKEN.encode() * 2])
def test_a_file_without_a_token_is_refused_and_not_shown(tmp_path: Path, content: bytes):
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"join_token_file\): not a join token") as caught:
        read_join_token(str(path))
    assert "nonsense" not in str(caught.value)
    assert "sss" not in str(caught.value)
    assert "moldau cluster token create" in caught.value.hint


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere \(join_token_file\): No such"):
        read_join_token(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="it has the form"):
        join_token("x", "MOLDAU_JOIN_TOKEN")


# ---- on the same machine


def test_the_secret_of_a_member_on_this_machine_is_read_from_its_file(tmp_path: Path):
    write_secret(OsFiles(tmp_path), ClusterSecret(SECRET))
    key = read_local_secret(str(tmp_path / SECRET_FILE))
    assert key is not None
    assert (key.token_id, key.value) == ("", SECRET)
    assert SECRET.hex() not in repr(key)


def test_no_member_can_make_a_broker_read_another_file(tmp_path: Path):
    assert read_local_secret("") is None
    assert read_local_secret(str(tmp_path / SECRET_FILE)) is None
    assert read_local_secret("/etc/passwd") is None
    assert read_local_secret("\0/" + SECRET_FILE) is None
    write_secret(OsFiles(tmp_path), ClusterSecret(SECRET))
    link = tmp_path / "folder" / SECRET_FILE
    link.parent.mkdir()
    link.symlink_to(tmp_path / SECRET_FILE)
    assert read_local_secret(str(link)) is None
    link.unlink()
    os.mkfifo(link)
    assert read_local_secret(str(link)) is None
    link.unlink()
    link.write_text("something else")
    assert read_local_secret(str(link)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_the_file_of_another_user_is_not_read(tmp_path: Path):
    write_secret(OsFiles(tmp_path), ClusterSecret(SECRET))
    os.chown(tmp_path / SECRET_FILE, 12345, 12345)
    assert read_local_secret(str(tmp_path / SECRET_FILE)) is None


def test_a_given_secret_is_a_copy_of_the_file_or_a_long_text(tmp_path: Path):
    file = tmp_path / "secret"
    assert new_secret_file(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o400
    known = read_secret_file(str(file))
    assert not new_secret_file(file), "one that exists is kept"
    assert read_secret_file(str(file)) == known
    file.unlink()
    file.write_text("5a" * 32 + "\n")
    text = read_secret_file(str(file))
    file.write_text("5a" * 32)
    assert read_secret_file(str(file)) == text != known


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("short", "at least 32 characters"),
        ("moldau-cluster-secret-1 " + "5a" * 32 + " 00000000", "a damaged copy"),
        (None, "No such file"),
    ],
)
def test_a_given_secret_that_is_none_is_an_error_that_does_not_show_it(
    tmp_path: Path, content: str | None, reason: str
):
    file = tmp_path / "secret"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=reason) as refused:
        read_secret_file(str(file))
    assert "cluster_secret_file" in str(refused.value)
    assert "5a5a" not in str(refused.value)


def test_no_repr_shows_a_secret():
    for shown in (repr(ClusterSecret(SECRET)), repr(JoinKey(SECRET)), repr(JoinKey(SECRET, "id"))):
        assert repr(SECRET) not in shown
        assert SECRET.hex() not in shown
