"""Owns the process's limit of open files: raised at start, and shared by clients and logs.

A log that cannot open its next segment is worse than a client that is turned away, so clients get
at most half of what the system grants.
"""

import logging
import sys

log = logging.getLogger(__name__)


def raise_limit() -> int | None:
    """Raise the limit as far as it goes without privileges; returns it, None if there is none."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            # Some systems promise more than they grant.
            log.debug("the limit of open files stays at %d", soft)
    return None if soft == resource.RLIM_INFINITY else soft


def connections_allowed(wanted: int, limit: int | None) -> int:
    """How many clients there may be, so that the logs keep half of the descriptors."""
    if limit is None or wanted <= limit // 2:
        return wanted
    allowed = max(1, limit // 2)
    log.warning(
        "at most %d client connections instead of %d (kafka.connections_max), because the system "
        "lets this process open no more than %d files; raise that limit (ulimit -n)",
        allowed,
        wanted,
        limit,
    )
    return allowed
