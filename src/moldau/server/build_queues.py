"""Owns how the queues of a broker are put together, and what of them peers may ask."""

from moldau.data.append_forwarding import AppendForwarder
from moldau.data.fetch import FetchService
from moldau.metadata.image import Image
from moldau.model.ids import BrokerId
from moldau.queues.assignments import Assignments
from moldau.queues.connect import ConnectHandler
from moldau.queues.group_rpc_client import GroupRpcClient
from moldau.queues.group_rpc_handlers import GroupRpcHandlers
from moldau.queues.group_rpc_messages import (
    COMMIT_METHOD,
    DESCRIBE_METHOD,
    HEARTBEAT_METHOD,
    MEMBER_LEFT_METHOD,
    OFFSETS_METHOD,
)
from moldau.queues.members import Members
from moldau.queues.ordered import OrderedGroups
from moldau.queues.queue_host import QueueHost
from moldau.queues.service import QueueService
from moldau.server.build_coordination import CoordinationServices
from moldau.server.config.schema import ServerConfig


def build_queue_service(
    config: ServerConfig, parts: CoordinationServices, fetch: FetchService, appends: AppendForwarder
) -> QueueService:
    metadata, cluster, transport = parts.metadata, parts.cluster, parts.transport

    def image() -> Image:
        return metadata.image

    def peers() -> list[BrokerId]:
        return [peer for peer, link in transport.links.items() if link.is_connected]

    # Those below tell the service, which is made last, of members that are gone.
    answers = GroupRpcHandlers(parts.groups, parts.topics, lambda *gone: members.left(*gone))
    calls = GroupRpcClient(
        me=parts.me,
        clock=parts.clock,
        groups=parts.groups,
        answers=answers,
        caller=transport,
        peers=peers,
    )
    members = Members(clock=parts.clock, calls=calls, on_gone=lambda *gone: service.on_gone(*gone))
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
    service = QueueService(
        me=parts.me,
        loop=parts.loop,
        clock=parts.clock,
        metadata=metadata,
        partitions=parts.partitions,
        leader_of=cluster.leader_of,
        calls=calls,
        members=members,
        connecting=ConnectHandler(
            metadata=metadata,
            calls=calls,
            assignments=Assignments(clock=parts.clock, image=image, leader_of=cluster.leader_of),
            session_timeout_ms=config.group.consumer_session_timeout_ms,
            session_timeout_ms_min=config.group.session_timeout_ms_min,
            session_timeout_ms_max=config.group.session_timeout_ms_max,
            on_defined=lambda group: service.begin(group),
            new_uuid=parts.new_uuid,
        ),
        leases=leases,
        ordered=OrderedGroups(
            loop=parts.loop,
            clock=parts.clock,
            image=image,
            partitions=parts.partitions,
            fetch=fetch,
            calls=calls,
        ),
        on_internal_error=parts.on_internal_error,
    )
    serve = transport.rpc.serve
    serve(HEARTBEAT_METHOD, answers.handle_heartbeat)
    serve(MEMBER_LEFT_METHOD, answers.handle_member_left)
    serve(COMMIT_METHOD, answers.answer_commit)
    serve(OFFSETS_METHOD, answers.answer_offsets)
    serve(DESCRIBE_METHOD, answers.answer_describe)
    return service
