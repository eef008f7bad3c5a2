"""Owns what stands between the doors and the rest of a broker.

How they reach other brokers: questions and writes that peers ask of each other. And how those are
opened that load late.
"""

import os
from asyncio import AbstractEventLoop

from moldau.api.broker import Broker
from moldau.api.cluster_views import EXTENTS_METHOD, GROUPS_METHOD, ClusterViews
from moldau.control.cluster import ClusterService
from moldau.coordination.groups import GroupService
from moldau.data.appending import APPEND_METHOD, AppendService
from moldau.data.partitions import Partitions
from moldau.data.produce import ProduceService
from moldau.data.vitals import Vitals
from moldau.edge.http.server import HttpListener, listener_for
from moldau.model.ids import BrokerId
from moldau.net.sockets import Sockets
from moldau.replica.transport import Transport
from moldau.server.config.schema import HttpConfig
from moldau.server.machine import GrpcServer, Machine
from moldau.server.ports import Port


def open_views(
    me: BrokerId,
    cluster: ClusterService,
    partitions: Partitions,
    groups: GroupService,
    transport: Transport,
) -> ClusterViews:
    views = ClusterViews(
        me=me, cluster=cluster, partitions=partitions, groups=groups, caller=transport
    )
    transport.rpc.serve(EXTENTS_METHOD, views.answer_extents)
    transport.rpc.serve(GROUPS_METHOD, views.answer_groups)
    return views


def open_appends(
    me: BrokerId, cluster: ClusterService, produce: ProduceService, transport: Transport
) -> AppendService:
    appends = AppendService(
        me=me,
        image=lambda: cluster.image,
        leader_of=cluster.leader_of,
        produce=produce,
        caller=transport,
    )
    transport.rpc.serve(APPEND_METHOD, appends.answer)
    return appends


def open_http(
    config: HttpConfig, broker: Broker, vitals: Vitals, loop: AbstractEventLoop, sockets: Sockets
) -> HttpListener:
    return listener_for(
        broker, vitals, loop=loop, cors_origins=config.cors_origin_list, sockets=sockets
    )


def open_grpc(
    machine: Machine, loop: AbstractEventLoop, broker: Broker, port: Port | None
) -> GrpcServer | None:
    """The gRPC door, bound where `port` is; None: there shall be none."""
    if port is None:
        return None
    # What clients did wrong is none of our log; an operator may ask for more.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    listener = machine.grpc_server(loop, broker)
    listener.bind(port.host, port.port)
    return listener
