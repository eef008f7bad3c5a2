"""Builds the lists of what brokers have: connections of clients, and Raft groups."""

from collections.abc import Callable, Iterable
from typing import TypedDict

from moldau.api.connections import Connections, ConnectionSource
from moldau.api.raft_groups import RaftGroups
from moldau.control.cluster_service import ClusterService
from moldau.model.clock import Clock
from moldau.net.peers.methods import PeerMethod
from moldau.replica.driver import RaftDriver
from moldau.replica.transport import Transport


class ClusterLists(TypedDict):
    """Parts of the facade, by their names in it."""

    connections: Connections
    raft_groups: RaftGroups


def build_cluster_lists(
    cluster: ClusterService,
    transport: Transport,
    driver: RaftDriver,
    clock: Clock,
    servers: Callable[[], Iterable[ConnectionSource | None]],
) -> ClusterLists:
    """`servers`: those that this broker has, once they are built."""
    me = transport.me
    connections = Connections(
        me=me, cluster=cluster, caller=transport, clock=clock, sources=servers
    )
    transport.rpc.serve(PeerMethod.LIST_CONNECTIONS, connections.on_request)
    groups = RaftGroups(me=me, cluster=cluster, driver=driver, caller=transport, clock=clock)
    transport.rpc.serve(PeerMethod.DESCRIBE_RAFT_GROUPS, groups.on_request)
    return {"connections": connections, "raft_groups": groups}
