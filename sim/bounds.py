"""Owns bounds of the product that no configuration has, made so small that worlds reach them.

A link takes megabytes before it is full, the log of the metadata is cut every few thousand records,
and offsets live for a minute at least: no world is long or large enough for that.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final
from unittest.mock import patch

from msgspec.structs import replace

from moldau.groups.config import GroupConfig
from moldau.net.peers import link
from moldau.net.peers.link import LinkLimits
from moldau.server import coordinators
from moldau.server.config.schema import ServerConfig
from moldau.service import metadata_store
from sim.plan import Plan

RETENTION_MS: Final = 4_000
"""So long, in worlds with savers, offsets live."""
_CHECK_MS: Final = 500
_LINK_BYTES: Final = 600
_SNAPSHOT_RECORDS: Final = 2


@contextmanager
def bounded(plan: Plan) -> Iterator[None]:
    """While a world of that plan runs."""
    with ExitStack() as stack:
        if plan.tight:
            limits = partial(LinkLimits, queue_bytes_max=_LINK_BYTES)
            stack.enter_context(patch.object(link, "LinkLimits", limits))
            stack.enter_context(
                patch.object(metadata_store, "_SNAPSHOT_RECORDS", _SNAPSHOT_RECORDS)
            )
        if plan.savers:
            stack.enter_context(patch.object(coordinators, "_group_config", _short_lived))
        yield


def _short_lived(config: ServerConfig) -> GroupConfig:
    return replace(
        _group_config(config),
        offsets_retention_ms=RETENTION_MS,
        offsets_retention_check_ms=_CHECK_MS,
    )


_group_config = coordinators._group_config
