"""Spark pipelines of the whole cluster, by what they publish: asked of the broker that leads their
topic.

As `moldau pipeline list` shows them; what a pipeline does not say is None.
"""

import asyncio
import logging
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct, field

from moldau.api.local_replicas import LocalReplicas
from moldau.api.pipeline_reports import TOPIC, PipelineProgress, PipelineReport, PipelineReports
from moldau.control.cluster_service import ClusterService
from moldau.metadata.leaders import NO_LEADER_ID
from moldau.model.clock import Clock
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId
from moldau.model.malformed import MALFORMED
from moldau.net.peers.caller import PeerCaller
from moldau.net.peers.methods import PeerMethod

log = logging.getLogger(__name__)

LOST: Final = "lost"
HEARTBEAT_MS_MAX: Final = 30_000
"""A pipeline that runs publishes its status each second; after so long without one it is lost."""
_ALIVE: Final = ("starting", "running")
_CALL_SECONDS_MAX: Final = 4.0
_READ_SECONDS_MAX: Final = 3.0
"""After this the rest of the topic is read by the next request."""
_TEXT_CHARACTERS_MAX: Final = 2_000
_TOPICS_MAX: Final = 20
_TOPIC_CHARACTERS_MAX: Final = 249


class _Progress(PipelineProgress, frozen=True, kw_only=True):
    rows_total: int | None = None
    rows_per_second: float | None = None
    batch_seconds: float | None = None
    note: str = ""


class _Outcome(Struct, frozen=True, kw_only=True):
    ok: bool = True
    summary: str = ""


class _Status(PipelineReport, frozen=True, kw_only=True):
    """The part of a status that is shown."""

    progress: _Progress = _Progress()
    settings: dict[str, Any] = field(default_factory=dict)
    outcome: _Outcome | None = None
    error: str = ""
    hint: str = ""
    host: str = ""
    started_at: int = 0


class PipelineListing(Struct, frozen=True, kw_only=True, array_like=True):
    """`state` is "lost" if it should run, and nothing is heard of it. The times are by the clock of
    its machine, in milliseconds since 1970."""

    name: str
    kind: str
    state: str
    topics: list[str]
    host: str
    batch: int | None
    batch_seconds: float | None
    rows: int
    rows_total: int | None
    rows_per_second: float | None
    """None, too, if it does not run."""
    lag: int | None
    dead_letters: int
    note: str
    error: str
    hint: str
    is_ok: bool | None
    """Of its outcome; None while it has none. An audit that found a difference is not."""
    summary: str
    started_at_ms: int | None
    updated_at_ms: int


class PipelineBoard(NamedTuple):
    """`is_complete`: all of the topic was read. `silent`: its leader, if that did not respond."""

    pipelines: list[PipelineListing]
    is_complete: bool
    silent: list[BrokerId]


_decode_status: Final = msgspec.json.Decoder(_Status).decode
_decode_reply: Final = msgspec.msgpack.Decoder(tuple[list[PipelineListing], bool]).decode


class ClusterPipelines:
    """Asks the leader, and responds if it is this broker."""

    def __init__(
        self,
        *,
        me: BrokerId,
        clock: Clock,
        cluster: ClusterService,
        replicas: LocalReplicas,
        caller: PeerCaller,
    ) -> None:
        self._me = me
        self._clock = clock
        self._cluster = cluster
        self._replicas = replicas
        self._caller = caller
        self._reports = PipelineReports(_decode_status)
        self._reading = asyncio.Lock()

    async def board(self) -> PipelineBoard:
        """All pipelines, by name."""
        topic = self._cluster.image.topic(TOPIC)
        if topic is None:
            return PipelineBoard([], True, [])
        leader = self._cluster.leader_of(topic, 0).broker
        try:
            if leader == self._me:
                found, is_complete = await self._here()
            elif leader == NO_LEADER_ID:
                raise RefusedError(ErrorCode.LEADER_NOT_AVAILABLE)
            else:
                reply = await self._caller.call(
                    leader, PeerMethod.PIPELINES, b"", _CALL_SECONDS_MAX
                )
                found, is_complete = _decode_reply(reply)
        except (RefusedError, *MALFORMED) as error:
            log.debug("broker %d did not list the pipelines: %s", leader, error)
            return PipelineBoard([], False, [leader])
        return PipelineBoard(found, is_complete, [])

    async def on_request(self, sender: BrokerId, payload: bytes) -> bytes:
        return msgspec.msgpack.encode(await self._here())

    async def _here(self) -> tuple[list[PipelineListing], bool]:
        """Raises RefusedError."""
        replica = self._replicas.get(TOPIC, 0)
        if replica is None or not replica.is_leader:
            raise RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        deadline = self._clock.monotonic() + _READ_SECONDS_MAX
        async with self._reading:
            while is_more := self._reports.read_some(self._replicas):
                if self._clock.monotonic() > deadline:
                    break
                await asyncio.sleep(0)
        now = self._clock.wall_ms()
        found = [
            _listing(name, report, now)
            for name, report in sorted(self._reports.reports.items())
            if isinstance(report, _Status)
        ]
        return found, not is_more


def _listing(name: str, status: _Status, now: int) -> PipelineListing:
    progress, outcome = status.progress, status.outcome
    state: str = status.state
    if state in _ALIVE and now - status.updated_at > HEARTBEAT_MS_MAX:
        state = LOST
    topics = status.settings.get("topics")
    named = topics if isinstance(topics, list) else []
    return PipelineListing(
        name=name,
        kind=status.kind,
        state=state,
        topics=[str(each)[:_TOPIC_CHARACTERS_MAX] for each in named[:_TOPICS_MAX]],
        host=status.host[:_TOPIC_CHARACTERS_MAX],
        batch=progress.batch,
        batch_seconds=progress.batch_seconds,
        rows=progress.rows,
        rows_total=progress.rows_total,
        rows_per_second=progress.rows_per_second if state in _ALIVE else None,
        lag=progress.lag,
        dead_letters=progress.dead_letters,
        note=progress.note[:_TEXT_CHARACTERS_MAX],
        error=status.error[:_TEXT_CHARACTERS_MAX],
        hint=status.hint[:_TEXT_CHARACTERS_MAX],
        is_ok=None if outcome is None else outcome.ok,
        summary="" if outcome is None else outcome.summary[:_TEXT_CHARACTERS_MAX],
        started_at_ms=status.started_at or None,
        updated_at_ms=status.updated_at,
    )
