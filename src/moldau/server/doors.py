"""Owns how the doors reach other brokers: questions and writes that peers ask of each other."""

from moldau.model.ids import BrokerId
from moldau.replica.transport import Transport
from moldau.service.appending import APPEND_METHOD, AppendService
from moldau.service.cluster import ClusterService
from moldau.service.groups import GroupService
from moldau.service.partitions import Partitions
from moldau.service.produce import ProduceService
from moldau.service.views import EXTENTS_METHOD, GROUPS_METHOD, ClusterViews


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
