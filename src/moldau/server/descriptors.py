"""The process's limit of open files: raised at start, and divided between clients and logs.

A log that cannot open its next segment is worse than a rejected client, so clients get at most half
of the descriptors.
"""

import logging
import sys

from moldau.model import log_events as events

log = logging.getLogger(__name__)


def raise_limit() -> int | None:
    """Raise the soft limit to the hard one; returns it, or None if unlimited."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            # Some systems report a hard limit that they do not grant.
            log.debug("cannot raise the limit of open files, it stays at %d", soft)
    return None if soft == resource.RLIM_INFINITY else soft


def connections_allowed(wanted: int, limit: int | None) -> int:
    """The connection limit that leaves half of the descriptors for logs."""
    if limit is None or wanted <= limit // 2:
        return wanted
    allowed = max(1, limit // 2)
    log.warning(
        "limiting client connections to %d instead of %d (kafka.connections_max), because this "
        "process may open only %d files; raise that limit (ulimit -n)",
        allowed,
        wanted,
        limit,
        extra=events.FILE_LIMIT_LOW(),
    )
    return allowed
