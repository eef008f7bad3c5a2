"""Builds the queues of a broker, and registers their peer RPCs."""

from typing import TypedDict

from moldau.data.append_forwarding import AppendForwarder
from moldau.data.fetch import FetchService
from moldau.metadata.image import Image
from moldau.model.ids import BrokerId
from moldau.net.peers.methods import PeerMethod
from moldau.queues.admin import QueueAdmin
from moldau.queues.admin_handlers import QueueAdminHandlers
from moldau.queues.assignments import Assignments
from moldau.queues.connect import ConnectHandler
from moldau.queues.group_rpc_client import GroupRpcClient
from moldau.queues.group_rpc_handlers import GroupRpcHandlers
from moldau.queues.members import Members
from moldau.queues.ordered import OrderedGroups
from moldau.queues.queue_host import QueueHost
from moldau.queues.service import QueueService
from moldau.server.build_coordination import CoordinationServices
from moldau.server.config.schema import ServerConfig


class QueueServices(TypedDict):
    queues: QueueService
    queue_admin: QueueAdmin


def build_queue_services(
    config: ServerConfig, parts: CoordinationServices, fetch: FetchService, appends: AppendForwarder
) -> QueueServices:
    metadata, cluster, transport = parts.metadata, parts.cluster, parts.transport

    def image() -> Image:
        return metadata.image

    def peers() -> list[BrokerId]:
        return [peer for peer, link in transport.links.items() if link.is_connected]

    # These notify the service, which is built last, of members that left.
    handlers = GroupRpcHandlers(parts.groups, parts.topics, lambda *member: members.left(*member))
    calls = GroupRpcClient(
        me=parts.me,
        clock=parts.clock,
        groups=parts.groups,
        handlers=handlers,
        caller=transport,
        peers=peers,
    )
    members = Members(
        clock=parts.clock,
        calls=calls,
        on_member_left=lambda *member: service.on_member_left(*member),
    )
    leases = QueueHost(
        loop=parts.loop,
        clock=parts.clock,
        partitions=parts.partitions,
        image=image,
        group_of=lambda name: metadata.image.queue_groups.get(name),
        leader_of=cluster.leader_of,
        ledgers=parts.ledgers,
        topics=parts.topics,
        appends=appends,
        on_internal_error=parts.on_internal_error,
    )
    connect = ConnectHandler(
        metadata=metadata,
        calls=calls,
        assignments=Assignments(clock=parts.clock, image=image, leader_of=cluster.leader_of),
        session_timeout_ms=config.group.consumer_session_timeout_ms,
        session_timeout_ms_min=config.group.session_timeout_ms_min,
        session_timeout_ms_max=config.group.session_timeout_ms_max,
        on_defined=lambda group: service.load_queues(group),
        new_uuid=parts.new_uuid,
    )
    service = QueueService(
        me=parts.me,
        loop=parts.loop,
        clock=parts.clock,
        metadata=metadata,
        partitions=parts.partitions,
        leader_of=cluster.leader_of,
        calls=calls,
        members=members,
        connect_handler=connect,
        leases=leases,
        ordered=OrderedGroups(
            clock=parts.clock,
            image=image,
            partitions=parts.partitions,
            fetch=fetch,
            calls=calls,
        ),
        on_internal_error=parts.on_internal_error,
    )
    serve = transport.rpc.serve
    serve(PeerMethod.QUEUE_HEARTBEAT, handlers.handle_heartbeat)
    serve(PeerMethod.QUEUE_MEMBER_LEFT, handlers.handle_member_left)
    serve(PeerMethod.QUEUE_COMMIT, handlers.handle_commit)
    serve(PeerMethod.QUEUE_OFFSETS, handlers.handle_offsets)
    serve(PeerMethod.QUEUE_DESCRIBE, handlers.handle_describe)
    return QueueServices(queues=service, queue_admin=_build_admin(parts, leases, appends, connect))


def _build_admin(
    parts: CoordinationServices, host: QueueHost, appends: AppendForwarder, connect: ConnectHandler
) -> QueueAdmin:
    handlers = QueueAdminHandlers(
        me=parts.me,
        loop=parts.loop,
        clock=parts.clock,
        metadata=parts.metadata,
        host=host,
        appends=appends,
        new_name=lambda: parts.new_uuid().hex,
    )
    serve = parts.transport.rpc.serve
    serve(PeerMethod.QUEUE_SHOW, handlers.on_show)
    serve(PeerMethod.QUEUE_DEAD_LETTERS, handlers.on_dead_letters)
    serve(PeerMethod.QUEUE_REDRIVE, handlers.on_redrive)
    serve(PeerMethod.QUEUE_PURGE, handlers.on_purge)
    return QueueAdmin(
        me=parts.me,
        clock=parts.clock,
        metadata=parts.metadata,
        leader_of=parts.cluster.leader_of,
        handlers=handlers,
        caller=parts.transport,
        define=connect.define,
    )
