"""Metrics of Raft: how far followers lag, elections, and the other brokers."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator

from moldau.api.metric_sources import MetricSources
from moldau.api.metrics_view import MetricsView
from moldau.edge.http.metrics import limits
from moldau.edge.http.metrics.table import family
from moldau.model.ids import BrokerId
from moldau.model.prometheus_text import MetricFamily


async def lag_families(view: MetricsView) -> AsyncIterator[MetricFamily]:
    """The lag of each follower, over the partitions led here."""
    behind: Counter[BrokerId] = Counter()
    lagging: Counter[BrokerId] = Counter()
    late: dict[BrokerId, float] = defaultdict(float)
    short = 0
    led = [replica for replica in view.replicas if replica.is_leader]
    for number, replica in enumerate(led):
        # First, since it brings the state of quiet followers up to date.
        short += replica.is_under_min_insync()
        lags = replica.follower_lag()
        seconds = replica.follower_seconds() if any(lags.values()) else {}
        for follower, missing in lags.items():
            behind[follower] += missing
            lagging[follower] += missing > 0
            if missing:
                late[follower] = max(late[follower], seconds[follower])
        if number % limits.ITEMS_PER_TURN == limits.ITEMS_PER_TURN - 1:
            await asyncio.sleep(0)
    lag = family("moldau_replication_lag_records")
    lag_seconds = family("moldau_replication_lag_seconds")
    partitions = family("moldau_replication_lagging_partitions")
    for follower in sorted(behind):
        labels = {"follower": str(follower)}
        lag.add(behind[follower], labels)
        lag_seconds.add(late[follower], labels)
        partitions.add(lagging[follower], labels)
    yield lag
    yield lag_seconds
    yield partitions
    yield family("moldau_partitions_under_min_insync", short)


def raft_families(sources: MetricSources) -> Iterator[MetricFamily]:
    counts = sources.raft
    yield family("moldau_leaderships_total", sources.leaderships())
    for name, found in (
        ("moldau_elections_total", counts.elections),
        ("moldau_elections_won_total", counts.won),
    ):
        by_cause = family(name)
        for cause in type(counts).CAUSES:
            # All of them, so that the first one is seen as an increase.
            by_cause.add(found[cause], {"cause": cause.value})
        yield by_cause
    yield family("moldau_raft_epoch_changes_total", counts.epoch_changes)
    yield family("moldau_raft_appends_sent_total", counts.appends_sent)
    yield family("moldau_raft_appends_received_total", counts.appends_received)
    yield family("moldau_raft_snapshots_sent_total", counts.snapshots_sent)
    yield family("moldau_raft_snapshots_received_total", counts.snapshots_received)


def peer_families(sources: MetricSources) -> Iterator[MetricFamily]:
    connected = family("moldau_peer_connected")
    sent = family("moldau_peer_sent_bytes_total")
    received = family("moldau_peer_received_bytes_total")
    skew = family("moldau_peer_clock_skew_seconds")
    round_trip = family("moldau_peer_round_trip_seconds")
    for one in sources.peers():
        labels = {"peer": str(one.peer)}
        connected.add(int(one.is_connected), labels)
        sent.add(one.sent_bytes, labels)
        received.add(one.received_bytes, labels)
        if one.clock is not None:
            skew.add(round(one.clock.ahead_seconds, 6), labels)
            round_trip.add(round(one.clock.round_trip_seconds, 6), labels)
    yield from (connected, sent, received, skew, round_trip)
