"""The file `admin.token` of a data directory: who can read it administers the broker.

New at each start. That is how the first user is made; later it helps after a lost password.
"""

import base64
import logging
import os
from pathlib import Path
from typing import Final

from moldau.model.layout import ADMIN_TOKEN_FILE

log = logging.getLogger(__name__)

TOKEN_BYTES: Final = 32
_MODE: Final = 0o600


def make_token(random: bytes) -> str:
    return base64.urlsafe_b64encode(random).decode().rstrip("=")


def write_token(root: Path, token: str) -> bool:
    """False, and a line in the log, if it cannot be written: the broker can do without."""
    target = root / ADMIN_TOKEN_FILE
    temporary = target.with_suffix(".new")
    try:
        temporary.unlink(missing_ok=True)
        # A new file, never one that somebody else has put or linked there.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(temporary, flags, _MODE), "w", encoding="ascii") as file:
            file.write(token + "\n")
        temporary.replace(target)
    except OSError as error:
        log.warning(
            "cannot write %s (%s): this broker has no local administrator", target, error.strerror
        )
        return False
    return True
