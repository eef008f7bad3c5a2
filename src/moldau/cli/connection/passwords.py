"""Reads passwords: from a file, a prompt, or the environment; never from an argument.

Arguments of a process can be read by every user of the machine.
"""

import os
import sys
from pathlib import Path
from typing import Final

import click

from moldau.cli.errors import CommandError, ExitCode

PASSWORD_VARIABLE: Final = "MOLDAU_PASSWORD"
ADMIN_TOKEN: Final = "admin.token"
_BYTES_MAX: Final = 64 * 1024


def read_password_file(path: str) -> str:
    """The first line of a file; `-` is stdin. Raises CommandError."""
    if path == "-":
        data = sys.stdin.buffer.readline(_BYTES_MAX)
    else:
        try:
            with Path(path).open("rb") as stream:
                data = stream.readline(_BYTES_MAX)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise CommandError(
                f"cannot read the password file {path} ({reason})", code=ExitCode.USAGE
            ) from None
    try:
        password = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise CommandError(
            f"the password file {path} is not text in UTF-8", code=ExitCode.USAGE
        ) from None
    if not password:
        raise CommandError(
            f"the password file {path} is empty",
            hint="its first line is the password",
            code=ExitCode.USAGE,
        )
    return password


def password_for(user: str, password_file: str | None) -> str:
    """The password of a user who logs in. Raises CommandError without any."""
    if password_file:
        return read_password_file(password_file)
    given = os.environ.get(PASSWORD_VARIABLE)
    if given:
        return given
    if not can_prompt():
        raise CommandError(
            f"no password for user {user}, and stdin is not a terminal",
            hint="pass --password-file FILE, or set MOLDAU_PASSWORD_FILE",
            code=ExitCode.USAGE,
        )
    return str(click.prompt(f"Password of {user}", hide_input=True, err=True))


def new_password(user: str, password_file: str | None) -> str:
    """A password that is set: from the file, or typed twice. Raises CommandError."""
    if password_file:
        return read_password_file(password_file)
    if not can_prompt():
        raise CommandError(
            f"no new password for user {user}, and stdin is not a terminal",
            hint="pass --new-password-file FILE, or --generate",
            code=ExitCode.USAGE,
        )
    return str(
        click.prompt(
            f"New password of {user}",
            hide_input=True,
            confirmation_prompt="The same again",
            err=True,
        )
    )


def can_prompt() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def read_admin_token(data_dir: str) -> str:
    """The token that a running broker keeps in its data directory. Raises CommandError."""
    path = Path(data_dir) / ADMIN_TOKEN
    try:
        token = path.read_text("ascii").strip()
    except FileNotFoundError:
        raise CommandError(
            f"{path} does not exist",
            hint="name the data directory of a running broker: --data-dir DIR",
            code=ExitCode.USAGE,
        ) from None
    except PermissionError:
        raise CommandError(
            f"cannot read {path} (permission denied)",
            hint="run the command as the user that runs the broker",
            code=ExitCode.USAGE,
        ) from None
    except ValueError:
        token = ""
    if not token:
        raise CommandError(f"{path} contains no token", hint="restart the broker")
    return token
