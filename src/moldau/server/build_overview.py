"""Builds what shows the whole cluster: the overview, its events, and the figures of lists."""

from typing import TypedDict

from moldau.api.cluster_pipelines import ClusterPipelines
from moldau.api.cluster_queries import ClusterQueries
from moldau.api.cluster_transactions import ClusterTransactions
from moldau.api.local_replicas import LocalReplicas
from moldau.api.overview.collector import SampleCollector
from moldau.api.overview.group_lags import GroupLags
from moldau.api.overview.sampler import OverviewSampler
from moldau.api.topic_groups import TopicGroups
from moldau.api.topic_rates import TopicRates
from moldau.api.topic_stats import TopicStats
from moldau.control.cluster_events import ClusterEvents
from moldau.control.cluster_scan import ClusterScan
from moldau.control.cluster_service import ClusterService
from moldau.control.event_watch import EventWatch
from moldau.control.leader_announcements import LeaderAnnouncements
from moldau.model.ids import BrokerId
from moldau.net.peers.methods import PeerMethod
from moldau.server.build_coordination import CoordinationServices
from moldau.server.build_protocols import build_cluster_views, build_topic_groups
from moldau.server.storage import Storage


class Views(TypedDict):
    """Services of `api.broker.Broker`."""

    replicas: LocalReplicas
    queries: ClusterQueries
    topic_groups: TopicGroups
    topic_stats: TopicStats
    group_lags: GroupLags
    overview: OverviewSampler
    cluster_transactions: ClusterTransactions
    pipelines: ClusterPipelines


def build_views(
    me: BrokerId,
    cluster: ClusterService,
    announcements: LeaderAnnouncements,
    parts: CoordinationServices,
    storage: Storage,
) -> Views:
    transport, clock = parts.transport, parts.clock
    replicas = LocalReplicas(parts.partitions)
    queries = build_cluster_views(me, cluster, parts.partitions, parts.groups, transport)
    rates = TopicRates(clock, replicas)
    stats = TopicStats(me=me, cluster=cluster, replicas=replicas, rates=rates, caller=transport)
    lags = GroupLags(
        me=me,
        clock=clock,
        groups=parts.groups,
        replicas=replicas,
        queries=queries,
        caller=transport,
    )
    collector = SampleCollector(
        clock=clock,
        cluster=cluster,
        replicas=replicas,
        lags=lags,
        topic_rates=rates,
        disk_free_bytes=storage.free_bytes,
        disk_total_bytes=storage.total_bytes,
    )
    scan = ClusterScan(cluster, announcements, clock)
    events = ClusterEvents(clock.wall_ms)
    watch = EventWatch(
        me=me, clock=clock, cluster=cluster, scan=scan, announcements=announcements, events=events
    )
    overview = OverviewSampler(
        me=me,
        clock=clock,
        cluster=cluster,
        scan=scan,
        events=events,
        watch=watch,
        collector=collector,
        caller=transport,
    )
    transactions = ClusterTransactions(
        me=me,
        clock=clock,
        cluster=cluster,
        partitions=parts.partitions,
        transactions=parts.transactions,
        caller=transport,
    )
    pipelines = ClusterPipelines(
        me=me, clock=clock, cluster=cluster, replicas=replicas, caller=transport
    )
    serve = transport.rpc.serve
    serve(PeerMethod.PIPELINES, pipelines.on_request)
    serve(PeerMethod.TRANSACTIONS, transactions.on_list_request)
    serve(PeerMethod.OPEN_PRODUCERS, transactions.on_open_request)
    serve(PeerMethod.ABORT_TRANSACTION, transactions.on_abort_request)
    serve(PeerMethod.ABORT_HANGING, transactions.on_abort_hanging_request)
    serve(PeerMethod.BROKER_SAMPLE, collector.on_request)
    serve(PeerMethod.TOPIC_STATS, stats.on_request)
    serve(PeerMethod.GROUP_LAGS, lags.on_request)
    return Views(
        replicas=replicas,
        queries=queries,
        topic_groups=build_topic_groups(me, cluster, parts.groups, lags, transport),
        topic_stats=stats,
        group_lags=lags,
        overview=overview,
        cluster_transactions=transactions,
        pipelines=pipelines,
    )
