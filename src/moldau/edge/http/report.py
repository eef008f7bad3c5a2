"""GET /api/v1/report: what only this broker knows of itself, its machine and its groups."""

import asyncio
from collections import Counter
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import moldau
from moldau.api.metric_sources import MetricSources
from moldau.api.metrics_view import MetricsView
from moldau.api.session import Session
from moldau.api.types import CommittedOffset, ListedGroup
from moldau.edge.http.metrics.process import open_files
from moldau.edge.http.query_parameters import read_int
from moldau.edge.http.responses import check_query, respond
from moldau.edge.http.visits import session_of
from moldau.model.broker_report import (
    IDLE_MS,
    BrokerReport,
    CertificateExpiry,
    IdleGroup,
    IdlePosition,
)
from moldau.model.errors import ErrorCode
from moldau.model.ids import TopicPartition
from moldau.model.topology import FEATURE_LEVEL_MAX

IDLE_MS_MAX: Final = 365 * 24 * 60 * 60 * 1000
_GROUPS_MAX: Final = 1000
_GROUPS_SHOWN_MAX: Final = 100
_PARTITIONS_MAX: Final = 5000
"""Whose ends are asked of their leaders."""
_POSITIONS_MAX: Final = 3
_ITEMS_PER_TURN: Final = 200
_WITH_MEMBERS: Final = ("Stable", "Assigning", "Reconciling")
_CONSUMERS: Final = "consumer"


def routes(sources: MetricSources) -> list[Route]:
    async def report(request: Request) -> Response:
        check_query(request, "idle_ms")
        idle_ms = read_int(request, "idle_ms", least=0, most=IDLE_MS_MAX)
        session = session_of(request)
        view = session.cluster.report()
        groups, unchecked = await _idle_groups(
            session, view, IDLE_MS if idle_ms is None else idle_ms
        )
        largest, largest_bytes = await _largest_topic(view)
        used, most = open_files()
        return respond(
            BrokerReport(
                broker=view.broker_id,
                cluster_id=session.cluster.cluster_id,
                version=moldau.__version__,
                feature_level_max=FEATURE_LEVEL_MAX,
                disk_free_bytes=view.disk_free_bytes(),
                disk_total_bytes=view.disk_total_bytes(),
                disk_reserve_bytes=sources.disk_reserve_bytes,
                largest_topic=largest,
                largest_topic_bytes=largest_bytes,
                open_files=used,
                open_files_max=most,
                connections_max=sources.listener.connections_max,
                certificates=tuple(
                    CertificateExpiry(file=file, expires_s=int(expires_at))
                    for file, expires_at in sorted(sources.certificates().items())
                ),
                idle_groups=groups,
                groups_unchecked=unchecked,
                # Last: the client halves the time around the request.
                now_ms=view.clock.wall_ms(),
            )
        )

    return [Route("/api/v1/report", report, methods=["GET"])]


async def _largest_topic(view: MetricsView) -> tuple[str, int]:
    sizes: Counter[str] = Counter({"": 0})
    for number, replica in enumerate(view.replicas, 1):
        sizes[replica.partition.topic] += replica.size_bytes
        if number % _ITEMS_PER_TURN == 0:
            await asyncio.sleep(0)
    return sizes.most_common(1)[0]


async def _idle_groups(
    session: Session, view: MetricsView, idle_ms: int
) -> tuple[tuple[IdleGroup, ...], int]:
    """Groups coordinated here that may be stuck, and how many were not checked."""
    error, listed = view.list_groups()
    if error is not ErrorCode.NONE:
        return (), 0
    before_ms = view.clock.wall_ms() - idle_ms
    stale: dict[str, dict[TopicPartition, CommittedOffset]] = {}
    commits: dict[str, int] = {}
    partitions = done = 0
    for group in listed[:_GROUPS_MAX]:
        offsets = view.known_offsets(group.group_id).offsets
        commits[group.group_id] = len(offsets)
        stale[group.group_id] = {
            partition: stored
            for partition, stored in offsets.items()
            if stored.commit_timestamp < before_ms
        }
        partitions += len(stale[group.group_id])
        done += 1 + len(offsets)
        if partitions >= _PARTITIONS_MAX:
            break
        if done >= _ITEMS_PER_TURN:
            done = 0
            await asyncio.sleep(0)
    ends = await session.queries.extents({one for found in stale.values() for one in found})
    checked = listed[: len(commits)]
    found = []
    for group in checked:
        positions = []
        for partition, stored in stale[group.group_id].items():
            extent = ends.get(partition)
            if extent is not None and extent.end > stored.offset:
                positions.append(_position(partition, stored, extent.end))
        has_members = _has_members(group)
        if positions or (has_members and not commits[group.group_id]):
            positions.sort(key=lambda one: one.commit_ms)
            found.append(
                IdleGroup(
                    group=group.group_id,
                    has_members=has_members,
                    commits=commits[group.group_id],
                    positions=tuple(positions[:_POSITIONS_MAX]),
                )
            )
    found.sort(key=lambda one: one.group)
    left_out = max(0, len(found) - _GROUPS_SHOWN_MAX)
    return tuple(found[:_GROUPS_SHOWN_MAX]), len(listed) - len(checked) + left_out


def _position(partition: TopicPartition, stored: CommittedOffset, end: int) -> IdlePosition:
    return IdlePosition(
        topic=partition.topic,
        partition=partition.partition,
        committed=stored.offset,
        commit_ms=stored.commit_timestamp,
        lag=end - stored.offset,
    )


def _has_members(group: ListedGroup) -> bool:
    """False for groups that do not consume, such as those of Kafka Connect."""
    is_consumer = group.group_type == _CONSUMERS or group.protocol_type == _CONSUMERS
    return is_consumer and str(group.state) in _WITH_MEMBERS
