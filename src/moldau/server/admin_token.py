"""The file `admin.token` of a data directory: who can read it administers the cluster.

It is derived from the secret of the cluster, which is in the same directory, and so the same on all
brokers: clients that begin with one broker are sent on to the others. That is how the first user is
made; later it helps after a lost password.
"""

import base64
import hmac
import logging
import os
from pathlib import Path
from typing import Final

from moldau.model import log_events as events
from moldau.model.layout import ADMIN_TOKEN_FILE

log = logging.getLogger(__name__)

_MODE: Final = 0o600
_PURPOSE: Final = b"moldau local administrator"
"""The secret has other uses; who learns the token learns nothing about them."""


def make_token(cluster_secret: bytes) -> str:
    derived = hmac.digest(cluster_secret, _PURPOSE, "sha256")
    return base64.urlsafe_b64encode(derived).decode().rstrip("=")


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
            "cannot write %s (%s): this broker has no local administrator",
            target,
            error.strerror,
            extra=events.ADMIN_TOKEN_NOT_WRITTEN(),
        )
        return False
    return True
