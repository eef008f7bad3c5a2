"""The secret of a broker's cluster: where a broker gets it from, and that it has one at all.

It is made at bootstrap, and a broker that joins receives it. It is kept in the data directory, in
`cluster.secret`. There is no way to run without it.
"""

import hashlib
import os
import secrets
import stat
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from moldau.log.datadir import IDENTITY_FILE
from moldau.log.os_filesystem import OsFiles
from moldau.log.secret_file import (
    SECRET_BYTES,
    SECRET_MARK,
    ClusterSecret,
    decode_secret,
    encode_secret,
    read_secret,
    write_secret,
)
from moldau.model.errors import ConfigError, CorruptionError
from moldau.model.ids import BrokerId
from moldau.model.layout import SECRET_FILE
from moldau.security.join_proof import (
    Transcript,
    parse_token,
    prove_secret,
    prove_token,
)
from moldau.server.machine import Machine
from moldau.server.storage import Storage

_TOKEN_BYTES_MAX: Final = 1024
_CONTENT_BYTES_MAX: Final = 1024
_TEXT_BYTES_MIN: Final = 32
"""Of a secret that an operator made up by a generator of passwords."""


def make_secret(machine: Machine) -> ClusterSecret:
    return ClusterSecret(machine.secret_bytes(SECRET_BYTES))


def keep_first_secret(
    storage: Storage, secret: ClusterSecret, me: BrokerId, brokers: Collection[BrokerId]
) -> None:
    """Before the first connection: what this broker uses must be in its directory.

    A directory of an older version has none. A broker without others gets one here; in a cluster
    all must get the same, so that only people can give it to them. Raises ConfigError.
    """
    if storage.read_secret() is not None:
        return
    if any(broker != me for broker in brokers):
        error = ConfigError(
            f"the data directory has no file {SECRET_FILE}, which the brokers of a cluster need to "
            "trust each other"
        )
        error.hint = (
            "copy the file from the data directory of another broker, readable for its owner only; "
            "if no broker has it, the cluster is of an older version: stop all brokers, run "
            "'moldau cluster secret create DATA_DIR', and copy the file to all of them"
        )
        raise error
    storage.write_secret(secret)


def give_secret(directories: Sequence[Path]) -> list[Path]:
    """Give data directories the same secret; returns the files written. Raises ConfigError.

    One that is there already is kept, and the others get it.
    """
    known, missing = _find_secret(directories)
    secret = known or ClusterSecret(secrets.token_bytes(SECRET_BYTES))
    return _write_secret(missing, secret)


def rotate_secret(directories: Sequence[Path], *, is_last: bool) -> list[Path]:
    """Begin the change of a secret, or complete it; returns the files written. Raises ConfigError.

    A new secret is first written together with the current one, which brokers go on accepting; the
    last step removes the earlier one. It is asked for: before all brokers know the new secret, it
    would part them.
    """
    known, missing = _find_secret(directories)
    if known is None or missing:
        directory = next(iter(missing), directories[0])
        error = ConfigError(f"{directory} has no file {SECRET_FILE}")
        error.hint = "give it the one that the other brokers have: moldau cluster secret create"
        raise error
    if is_last is (known.earlier is None):
        error = ConfigError(
            "the secret is not being changed: there is no old one to remove"
            if is_last
            else "the secret is being changed already: the file has a new and an old one"
        )
        error.hint = (
            "begin without --finish"
            if is_last
            else "copy the file to all brokers, restart them, and run the command with --finish"
        )
        raise error
    if is_last:
        return _write_secret(directories, ClusterSecret(known.value))
    new = ClusterSecret(secrets.token_bytes(SECRET_BYTES), known.value)
    return _write_secret(directories, new)


def _find_secret(directories: Sequence[Path]) -> tuple[ClusterSecret | None, list[Path]]:
    """The one that they have, and those without. Raises ConfigError."""
    known: dict[ClusterSecret, Path] = {}
    missing: list[Path] = []
    for directory in directories:
        if not (directory / IDENTITY_FILE).is_file():
            raise ConfigError(f"{directory} is not the data directory of a broker")
        try:
            found = read_secret(OsFiles(directory))
        except (CorruptionError, OSError) as error:
            raise ConfigError(f"{directory}: {error}") from None
        if found is None:
            missing.append(directory)
        else:
            known.setdefault(found, directory)
    if len(known) > 1:
        first, second = list(known.values())[:2]
        raise ConfigError(
            f"{first} and {second} have different secrets: they belong to different clusters, or "
            "a new secret was not copied to all brokers"
        )
    return next(iter(known), None), missing


def _write_secret(directories: Sequence[Path], secret: ClusterSecret) -> list[Path]:
    """The files written. Raises ConfigError."""
    for directory in directories:
        try:
            write_secret(OsFiles(directory), secret)
        except OSError as error:
            raise ConfigError(f"cannot write to {directory}: {error.strerror or error}") from None
    return [directory / SECRET_FILE for directory in directories]


class JoinKey:
    """How a broker proves that it may join: by the cluster's secret, or by a token."""

    __slots__ = ("_key", "earlier", "token_id")

    def __init__(self, key: bytes, token_id: str = "", *, earlier: "JoinKey | None" = None) -> None:
        self._key = key
        self.token_id = token_id
        """Empty: by the secret of the cluster."""
        self.earlier = earlier
        """For a member that does not have the new secret yet."""

    def __repr__(self) -> str:
        return f"JoinKey(token_id={self.token_id!r})"

    @property
    def value(self) -> bytes:
        return self._key

    def prove(self, transcript: Transcript) -> bytes:
        prove = prove_token if self.token_id else prove_secret
        return prove(self._key, transcript)


def join_key(secret: ClusterSecret) -> JoinKey:
    earlier = None if secret.earlier is None else JoinKey(secret.earlier)
    return JoinKey(secret.value, earlier=earlier)


def read_join_token(path: str) -> JoinKey:
    """The token in a file. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            content = file.read(_TOKEN_BYTES_MAX)
    except OSError as error:
        raise ConfigError(
            f"cannot read {path} (join_token_file): {error.strerror or error}"
        ) from None
    return join_token(content.decode("ascii", "replace"), f"{path} (join_token_file)")


def read_secret_file(path: str) -> ClusterSecret:
    """The secret in a file that the operator gave: as in data directories, or a long text.
    Raises ConfigError, whose text does not contain the content."""
    try:
        with open(path, "rb") as file:
            content = file.read(_CONTENT_BYTES_MAX).strip()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path} (cluster_secret_file): {error.strerror or error}"
        ) from None
    try:
        return decode_secret(content)
    except CorruptionError:
        if content.startswith(SECRET_MARK):
            raise ConfigError(
                f"{path} (cluster_secret_file) is a damaged copy of {SECRET_FILE}: copy it again"
            ) from None
    if len(content) < _TEXT_BYTES_MIN:
        failure = ConfigError(
            f"{path} (cluster_secret_file) must have at least {_TEXT_BYTES_MIN} characters"
        )
        failure.hint = "make one: moldau cluster secret new FILE, or openssl rand -hex 32"
        raise failure
    return ClusterSecret(hashlib.sha256(content).digest())


def new_secret_file(path: Path) -> bool:
    """Write a new secret to a file, unless it exists; returns whether it was written. Raises
    ConfigError."""
    secret = encode_secret(ClusterSecret(secrets.token_bytes(SECRET_BYTES)))
    try:
        # Linked when it is complete: another process never reads a part of it.
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.touch(mode=0o400)
        part.chmod(0o600)
        part.write_bytes(secret)
        part.chmod(0o400)
        try:
            os.link(part, path)
        finally:
            part.unlink()
    except FileExistsError:
        return False
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None
    return True


def join_token(text: str, source: str) -> JoinKey:
    """Raises ConfigError."""
    try:
        token = parse_token(text)
    except ValueError as error:
        failure = ConfigError(f"{source}: {error}")
        failure.hint = "create one on a member: moldau cluster token create"
        raise failure from None
    return JoinKey(token.secret, token.id)


def read_local_secret(path: str) -> JoinKey | None:
    """The secret in the directory of a member on this machine, if this user may read it.

    The member names the file. It must be one of the same user, and be named like a secret: another
    process at that address must not make this broker read anything else.
    """
    if not path or Path(path).name != SECRET_FILE:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return None
        return join_key(decode_secret(os.read(descriptor, _CONTENT_BYTES_MAX)))
    except (OSError, CorruptionError):
        return None
    finally:
        os.close(descriptor)
