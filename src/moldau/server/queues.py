"""Owns how the queues of a broker are put together, and what of them peers may ask."""

from moldau.data.appending import AppendService
from moldau.data.fetch import FetchService
from moldau.metadata.image import Image
from moldau.model.ids import BrokerId
from moldau.queues.assignments import Assignments
from moldau.queues.connecting import Connecting
from moldau.queues.group_answers import GroupAnswers
from moldau.queues.group_calls import GroupCalls
from moldau.queues.group_messages import (
    BEAT_METHOD,
    COMMIT_METHOD,
    DESCRIBE_METHOD,
    GONE_METHOD,
    OFFSETS_METHOD,
)
from moldau.queues.leases import LeaseHost
from moldau.queues.members import Members
from moldau.queues.ordered import OrderedGroups
from moldau.queues.service import QueueService
from moldau.server.config.schema import ServerConfig
from moldau.server.coordinators import Coordinators


def open_queues(
    config: ServerConfig, parts: Coordinators, fetch: FetchService, appends: AppendService
) -> QueueService:
    metadata, cluster, transport = parts.metadata, parts.cluster, parts.transport

    def image() -> Image:
        return metadata.image

    def peers() -> list[BrokerId]:
        return [peer for peer, link in transport.links.items() if link.is_connected]

    # Those below tell the service, which is made last, of members that are gone.
    answers = GroupAnswers(parts.groups, parts.topics, lambda *gone: members.left(*gone))
    calls = GroupCalls(
        me=parts.me,
        clock=parts.clock,
        groups=parts.groups,
        answers=answers,
        caller=transport,
        peers=peers,
    )
    members = Members(clock=parts.clock, calls=calls, on_gone=lambda *gone: service.on_gone(*gone))
    leases = LeaseHost(
        loop=parts.loop,
        clock=parts.clock,
        partitions=parts.partitions,
        image=image,
        group_of=lambda name: metadata.image.queue_groups.get(name),
        leader_of=cluster.leader_of,
        ledgers=parts.ledgers,
        topics=parts.topics,
        appends=appends,
        on_defect=parts.on_defect,
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
        connecting=Connecting(
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
        on_defect=parts.on_defect,
    )
    serve = transport.rpc.serve
    serve(BEAT_METHOD, answers.answer_beat)
    serve(GONE_METHOD, answers.answer_gone)
    serve(COMMIT_METHOD, answers.answer_commit)
    serve(OFFSETS_METHOD, answers.answer_offsets)
    serve(DESCRIBE_METHOD, answers.answer_describe)
    return service
