"""Bounds of the product that a world makes small: what only happens beyond them happens often.

A broker keeps ten thousand of this and sends megabytes of that before something else is done; no
world is as large. Each knob is a theme: constants of the product that have other values as long as
the world lasts.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Final

from msgspec.structs import replace

from moldau.groups.config import GroupConfig
from moldau.server import build_coordination
from moldau.server.config.schema import ServerConfig
from sim.network import Rates

Values = Mapping[str, Any]
"""By module and name, "moldau.replica.peer_send_queue:FRAME_BYTES_TARGET"."""

FAR: Final = Rates(delay_seconds=0.015, jitter_seconds=0.015, window_bytes=2_000)
"""Where everybody is far from everybody, and little is under way at a time."""
RETENTION_MS: Final = 4_000
"""So long offsets live where they expire."""
_MINUTE_MS, _HOUR_MS, _DAY_MS = 500, 2_000, 8_000


def _short_lived(config: ServerConfig) -> GroupConfig:
    return replace(
        _group_config(config), offsets_retention_ms=RETENTION_MS, offsets_retention_check_ms=500
    )


_group_config = build_coordination._group_config

KNOBS: Final[Mapping[str, Values]] = {
    # A producer's epochs end after a few transactions.
    "epochs": {"moldau.transactions.decide:EPOCH_MAX": 7},
    # What brokers send each other, and how much of it may be under way.
    "sends": {
        "moldau.replica.peer_send_queue:FRAME_BYTES_TARGET": 2_000,
        "moldau.replica.peer_send_queue:_WAITING_BYTES_MAX": 3_000,
        "moldau.replica.turn_batcher:_BULK_BYTES_PER_TURN_MAX": 3_000,
        "moldau.replica.turn_batcher:_COLD_BYTES": 1_000,
        "moldau.replica.cold_sends:_READS_MAX": 1,
        "moldau.replica.raft_receiver:_DEFERRED_BYTES_MAX": 4_000,
        "moldau.net.peers.frames:PIECE_BYTES_MAX": 700,
        "moldau.net.socket_writer:SENDFILE_BYTES_MIN": 256,
        "moldau.net.socket_writer:_IOV_MAX": 4,
        "moldau.net.peers.rpc:_OPEN_MAX": 16,
        "moldau.net.peers.rpc:_WORKING_PER_PEER_MAX": 2,
    },
    # What is kept in memory, and how much is done in one go.
    "keeps": {
        "moldau.groups.consumer.patterns:_SETS_KEPT_MAX": 2,
        "moldau.groups.consumer.subscriptions:_PATTERNS_KEPT_MAX": 1,
        "moldau.groups.offsets:_EXPIRY_SLICE_MAX": 1,
        "moldau.groups.deletion:_REMOVED_MAX": 1,
        "moldau.leases.state:_DEAD_LETTERED_MAX": 3,
        "moldau.transactions.records:_CACHED_PARTITIONS_MAX": 1,
        "moldau.coordination.markers:_REQUESTS_PER_CALL_MAX": 1,
        "moldau.coordination.markers:_CALLS_PER_BROKER_MAX": 1,
        "moldau.coordination.coordinator_host:_LOAD_BYTES_PER_READ": 512,
        "moldau.coordination.coordinator_service:_NAMES_REMEMBERED_MAX": 2,
        "moldau.control.leader_announcements:_ENTRIES_PER_CALL_MAX": 2,
        "moldau.data.leader_queries:_PARTITIONS_PER_CALL_MAX": 2,
        "moldau.queues.assignments:_KEPT_MAX": 1,
        "moldau.queues.reader:_INLINE_BYTES_MAX": 200,
        "moldau.queues.queue_host:_PART_BYTES_MIN": 200,
        "moldau.data.record_reader:READ_BYTES_MAX": 2_000,
        "moldau.edge.kafka.produce_reply:_TEMPLATES_MAX": 2,
        "moldau.edge.concurrent_work:_AT_ONCE_MAX": 1,
        "moldau.edge.kafka.large_requests:_TURN_SECONDS_MAX": 0.0,
        "moldau.edge.kafka.large_requests:_CLOCK_INTERVAL": 1,
        "moldau.edge.kafka.large_requests:_CLOCK_INTERVAL_FIRST": 2,
        "moldau.groups.assignors.uniform:_CHAIN_VISITS_MAX": 40,
    },
    # Files: what is written, read and rewritten at a time.
    "files": {
        "moldau.control.metadata_store:_SNAPSHOT_RECORDS": 12,
        "moldau.data.maintenance:_SNAPSHOT_CHECK_SECONDS": 0.7,
        "moldau.replica.replica:_SNAPSHOT_BYTES": 4_000,
        "moldau.log.writer:FILL_FIRST_BYTES": 8_192,
        "moldau.log.writer:FILL_BYTES_MAX": 16_384,
        "moldau.log.writer:FILL_ROOM_MIN": 4_096,
        "moldau.log.compaction.segment_writer:WRITE_BYTES": 1_000,
        "moldau.log.compaction.segment_writer:FLUSH_BYTES": 3_000,
        "moldau.log.compaction.job:HORIZONS_MAX": 3,
        "moldau.log.control_journal:REWRITE_DEAD_MIN": 2,
        "moldau.log.vote_journal:_REWRITE_BYTES_MIN": 600,
        "moldau.log.recovery:CHECK_BYTES": 4_096,
        "moldau.log.reader:POSITIONS_MAX": 2,
        "moldau.log.reader:CLOSED_LOADED_MAX": 1,
        "moldau.log.index:INDEX_SAVE_BYTES": 4_000,
        "moldau.log.scan:CHUNK_BYTES": 4_096,
        "moldau.log.flush:CHUNK_BYTES": 8_192,
        "moldau.data.scrub:_STEP_BYTES": 2_000,
    },
    # Delayed messages are in buckets of days, hours and minutes: days of seconds.
    "buckets": {
        "moldau.leases.delay_buckets:MINUTE_MS": _MINUTE_MS,
        "moldau.leases.delay_buckets:HOUR_MS": _HOUR_MS,
        "moldau.leases.delay_buckets:DAY_MS": _DAY_MS,
        "moldau.leases.delay_buckets:SPANS_MS": (_DAY_MS, _HOUR_MS, _MINUTE_MS),
    },
    # What nobody uses is forgotten soon.
    "forgets": {},
    # Clients and members: few at a time.
    "few": {"moldau.queues.ledger_scheduler:_WAITING_PER_QUEUE_MAX": 1},
    # Links are full at once, and the log of the metadata is cut all the time.
    "tight": {
        "moldau.control.metadata_store:_SNAPSHOT_RECORDS": 1,
        "moldau.data.maintenance:_SNAPSHOT_CHECK_SECONDS": 0.2,
    },
    # Answers take long on the way, and what is not answered is sent again before they are there.
    "far": {},
    # Offsets grow old in seconds.
    "expires": {"moldau.server.build_coordination:_group_config": _short_lived},
}
_MADE: Final[Mapping[str, tuple[tuple[str, Mapping[str, Any]], ...]]] = {
    "sends": (
        (
            "moldau.replica.driver:RaftConfig",
            {"append_bytes_max": 2_000, "inflight_bytes_max": 5_000, "inflight_count_max": 2},
        ),
        ("moldau.net.peers.link:LinkLimits", {"queue_bytes_max": 3_000, "queue_chunks_max": 8}),
    ),
    "keeps": (("moldau.server.build_coordination:GroupConfig", {"persist_bytes_max": 150}),),
    "forgets": (
        (
            "moldau.server.build_coordination:GroupConfig",
            {"offsets_retention_check_ms": 900, "new_member_timeout_ms": 3_000},
        ),
        ("moldau.server.build_coordination:TransactionConfig", {"id_expiry_check_ms": 1_500}),
    ),
    "few": (("moldau.server.build_coordination:TransactionConfig", {"busy_waiting_max": 1}),),
    "tight": (("moldau.net.peers.link:LinkLimits", {"queue_bytes_max": 600}),),
    "far": (("moldau.replica.driver:RaftConfig", {"retry_ms": 3}),),
}
"""Settings that no file has: what makes them is given other defaults."""


def configured(config: ServerConfig, knobs: frozenset[str]) -> ServerConfig:
    """The settings that belong to a knob."""
    if "few" in knobs:
        kafka = replace(
            config.kafka,
            inflight_requests_per_connection_max=2,
            inflight_bytes_per_connection_max=4_096,
            inflight_bytes_max=1 << 20,
        )
        config = replace(config, kafka=kafka, group=replace(config.group, size_max=5))
    if "forgets" in knobs:
        config = replace(
            config,
            transaction=replace(config.transaction, id_expiry_ms=60_000),
            group=replace(config.group, offsets_retention_minutes=1),
            producer=replace(config.producer, id_expiry_ms=60_000),
        )
    if "files" in knobs:
        config = replace(config, log=replace(config.log, compaction_map_bytes=64 * 32))
    return config


@contextmanager
def turned(knobs: frozenset[str]) -> Iterator[None]:
    """As long as it is entered, the product has those bounds."""
    undo: list[Callable[[], None]] = []
    try:
        for knob in sorted(knobs):
            for name, value in KNOBS[knob].items():
                _set(name, value, undo)
            for name, defaults in _MADE.get(knob, ()):
                module, _, kind = name.partition(":")
                made = getattr(import_module(module), kind)
                _set(name, partial(made, **defaults), undo)
        yield
    finally:
        for one in reversed(undo):
            one()


def _set(name: str, value: object, undo: list[Callable[[], None]]) -> None:
    """Where it is defined; a public one also where it was imported to."""
    path, _, attribute = name.partition(":")
    owner = import_module(path)
    before = getattr(owner, attribute)
    modules = [owner]
    if not attribute.startswith("_") and not callable(before):
        modules = [
            module
            for module_name, module in sorted(sys.modules.items())
            if module_name.startswith("moldau.") and vars(module).get(attribute) == before
        ]
    for module in modules:
        setattr(module, attribute, value)
        undo.append(partial(setattr, module, attribute, before))
