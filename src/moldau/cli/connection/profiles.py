"""Profiles: the addresses of a cluster and credentials, in a file of the user alone.

One profile is the current one; its addresses and credentials are the defaults of all commands.
"""

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from moldau.cli.errors import CommandError, ExitCode

PROFILE_DEFAULT: Final = "default"
_FILE: Final = "profiles.yaml"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class Profile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One profile. The repr shows no secret."""

    http: str = ""
    brokers: str = ""
    grpc: str = ""
    user: str = ""
    token: str = ""
    expires_at_ms: int = 0
    """0: unknown."""
    password: str = ""
    password_file: str = ""
    mechanism: str = ""
    """Empty: the best that the broker has."""
    tls: bool = False
    cafile: str = ""
    certfile: str = ""
    keyfile: str = ""

    def __repr__(self) -> str:
        return f"Profile(http={self.http!r}, brokers={self.brokers!r}, user={self.user!r})"

    @property
    def login_state(self) -> str:
        """How commands log in: whether the token is valid, or where the password is."""
        if self.token:
            return "expired" if self.is_expired else "valid"
        if self.password_file:
            return f"password in {self.password_file}"
        return "password" if self.password else "none"

    @property
    def is_expired(self) -> bool:
        return 0 < self.expires_at_ms <= time.time() * 1000


class ProfileFile(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The file."""

    current: str = ""
    profiles: dict[str, Profile] = msgspec.field(default_factory=dict)


def profiles_path() -> Path:
    """The file in the user's configuration directory."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "moldau" / _FILE


def load_profiles() -> ProfileFile:
    """The file; empty if there is none. Raises CommandError."""
    path = profiles_path()
    try:
        with path.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            data = stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return ProfileFile()
    if mode & _OTHERS:
        raise CommandError(
            f"{path} contains secrets, and other users can read it",
            hint=f"chmod 600 {path}",
            code=ExitCode.CONFIG,
        )
    import yaml

    try:
        return msgspec.convert(yaml.safe_load(data) or {}, ProfileFile)
    except (yaml.YAMLError, msgspec.ValidationError, ValueError, RecursionError):
        # Without the reason: it could quote a token.
        raise CommandError(
            f"{path} is not a valid file of profiles",
            hint="mend or delete it, then: moldau profile add, or moldau login",
            code=ExitCode.CONFIG,
        ) from None


def find_profile(name: str) -> tuple[str, Profile] | None:
    """The profile of that name, or the current one if it is empty. Raises CommandError."""
    found = load_profiles()
    name = name or found.current
    if not name:
        return None
    if name not in found.profiles:
        raise CommandError(
            f"there is no profile {name}",
            hint=f"list them: moldau profile list · create it: moldau profile add {name}, "
            f"or moldau login --profile {name}",
            code=ExitCode.NOT_FOUND,
        )
    return name, found.profiles[name]


@contextlib.contextmanager
def changed_profiles() -> Iterator[ProfileFile]:
    """Change the file: written at the end of the with block, unless an error is raised."""
    found = load_profiles()
    yield found
    _write(profiles_path(), msgspec.to_builtins(found))


def _write(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file: a reader sees the old or the new one, nobody else sees any."""
    import yaml

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Created with mode 0600.
    number, temporary = tempfile.mkstemp(dir=path.parent, prefix=_FILE)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            yaml.safe_dump(dict(content), stream, sort_keys=False, allow_unicode=True)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
