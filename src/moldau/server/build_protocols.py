"""Builds the servers of HTTP and gRPC, and the services by which they reach other brokers."""

from asyncio import AbstractEventLoop
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from moldau.api.cluster_queries import ClusterQueries
from moldau.api.entrance import Entrance
from moldau.api.metric_sources import MetricSources
from moldau.api.offsets_at import OffsetsAt
from moldau.api.overview.group_lags import GroupLags
from moldau.api.play import PlayService
from moldau.api.record_deletion import RecordDeletion
from moldau.api.search.leaders import SearchLeaders
from moldau.api.search.live import LiveViews
from moldau.api.search.pages import TopicSearch
from moldau.api.topic_groups import TopicGroups
from moldau.control.cluster_service import ClusterService
from moldau.control.topic_service import TopicService
from moldau.coordination.group_service import GroupService
from moldau.data.append_forwarding import AppendForwarder
from moldau.data.fetch import FetchService
from moldau.data.offsets import OffsetService
from moldau.data.partitions import Partitions
from moldau.data.produce import ProduceService
from moldau.data.search.follow import FollowPartitions
from moldau.data.search.pieces import SearchPieces
from moldau.edge.http.listener import HttpListener, listener_for
from moldau.edge.http.node.link import NodeLinks
from moldau.model.clock import Clock
from moldau.model.ids import BrokerId
from moldau.net.peers.methods import PeerMethod
from moldau.net.tls.contexts import TlsContexts
from moldau.replica.transport import Transport
from moldau.server.config.schema import ServerConfig
from moldau.server.machine import GrpcServer, Machine
from moldau.server.node.process import SOCKET_NAME, NodeProcess
from moldau.server.ports import ReservedPort


class SearchServices(TypedDict):
    """By the names that the facade has for them."""

    search: TopicSearch
    live: LiveViews


def build_cluster_views(
    me: BrokerId,
    cluster: ClusterService,
    partitions: Partitions,
    groups: GroupService,
    transport: Transport,
) -> ClusterQueries:
    views = ClusterQueries(
        me=me, cluster=cluster, partitions=partitions, groups=groups, caller=transport
    )
    transport.rpc.serve(PeerMethod.PARTITION_EXTENTS, views.on_extents_request)
    transport.rpc.serve(PeerMethod.LIST_GROUPS, views.on_groups_request)
    return views


def build_topic_groups(
    me: BrokerId,
    cluster: ClusterService,
    groups: GroupService,
    lags: GroupLags,
    transport: Transport,
) -> TopicGroups:
    found = TopicGroups(me=me, cluster=cluster, groups=groups, lags=lags, caller=transport)
    transport.rpc.serve(PeerMethod.GROUPS_OF_TOPIC, found.on_request)
    return found


def build_offsets_at(
    me: BrokerId, cluster: ClusterService, offsets: OffsetService, transport: Transport
) -> OffsetsAt:
    found = OffsetsAt(me=me, cluster=cluster, offsets=offsets, caller=transport)
    transport.rpc.serve(PeerMethod.OFFSETS_AT, found.on_request)
    return found


def build_play(me: BrokerId, machine: Machine) -> PlayService:
    return PlayService(me, None if machine.play is None else machine.play.ground)


def build_record_deletion(
    me: BrokerId, cluster: ClusterService, topics: TopicService, transport: Transport
) -> RecordDeletion:
    deletions = RecordDeletion(me=me, topics=topics, leader_of=cluster.leader_of, caller=transport)
    transport.rpc.serve(PeerMethod.DELETE_RECORDS, deletions.on_request)
    return deletions


def build_search(
    me: BrokerId,
    clock: Clock,
    cluster: ClusterService,
    partitions: Partitions,
    fetch: FetchService,
    transport: Transport,
) -> SearchServices:
    pieces = SearchPieces(
        clock=clock, partitions=partitions, fetch=fetch, offsets=OffsetService(partitions)
    )
    transport.rpc.serve(PeerMethod.SEARCH_PIECES, pieces.on_request)
    leaders = SearchLeaders(me=me, leader_of=cluster.leader_of, pieces=pieces, caller=transport)
    follow = FollowPartitions(clock=clock, pieces=pieces)
    transport.rpc.serve(PeerMethod.FOLLOW_PARTITIONS, follow.on_request, limits_itself=True)
    views = LiveViews(
        me=me,
        clock=clock,
        leader_of=cluster.leader_of,
        leaders_version=lambda: cluster.leaders_version,
        topic_of=lambda name: cluster.image.topic(name),
        follow=follow,
        caller=transport,
    )
    return {"search": TopicSearch(clock=clock, leaders=leaders), "live": views}


def build_append_service(
    me: BrokerId, cluster: ClusterService, produce: ProduceService, transport: Transport
) -> AppendForwarder:
    appends = AppendForwarder(
        me=me,
        image=lambda: cluster.image,
        leader_of=cluster.leader_of,
        produce=produce,
        caller=transport,
    )
    transport.rpc.serve(PeerMethod.APPEND, appends.on_request)
    return appends


def build_http_listener(
    config: ServerConfig,
    machine: Machine,
    loop: AbstractEventLoop,
    entrance: Entrance,
    sources: MetricSources,
    transport: Transport,
    hosts: Sequence[str],
    tls: TlsContexts | None,
) -> HttpListener:
    """Not bound yet. `hosts`: names of the broker besides those of its settings."""
    listener = listener_for(
        entrance,
        sources,
        loop=loop,
        peers=transport,
        first_exchange=machine.rng.getrandbits(62),
        hosts=(*config.http.host_list, *hosts),
        cors_origins=config.http.cors_origin_list,
        sockets=machine.sockets,
        tls=tls,
        clock=machine.clock,
        node=None if machine.node is None else _links_of(machine.node),
    )
    if listener.exchanges is not None:
        for method, handler in listener.exchanges.methods.items():
            transport.rpc.serve(method, handler, limits_itself=True)
    return listener


def _links_of(node: NodeProcess) -> NodeLinks:
    def path_of(number: int) -> Path:
        return Path(node.directories[number - 1], SOCKET_NAME)

    return NodeLinks(
        number=node.number,
        port=node.http_port,
        path=path_of(node.number),
        others=lambda: [(number, path_of(number)) for number in node.others()],
    )


def build_grpc_server(
    machine: Machine,
    loop: AbstractEventLoop,
    entrance: Entrance,
    port: ReservedPort | None,
    tls: TlsContexts | None = None,
) -> GrpcServer | None:
    """The gRPC server, bound to `port`; None if it is disabled."""
    if port is None:
        return None
    listener = machine.grpc_server(loop, entrance, tls)
    listener.bind(port.host, port.port)
    if port.shared is not None:
        listener.share(port.shared.address)
    return listener
