"""Handlers of CreateTopic, Topology and ManageBrokers."""

from moldau.api.queues import invalid
from moldau.api.session import Session
from moldau.edge.grpc.checks import INT_MAX, number, topic_name
from moldau.model.limits import PARTITIONS_PER_TOPIC_MAX
from moldau.model.topology import Topology
from moldau.proto.v1.queue_pb2 import (
    CreateTopicRequest,
    CreateTopicResponse,
    ManageBrokersRequest,
    ManageBrokersResponse,
    TopologyRequest,
    TopologyResponse,
)

_DEFAULT = -1
_REPLICAS_MAX = 32_767


class ClusterHandlers:
    async def create_topic(
        self, request: CreateTopicRequest, session: Session
    ) -> CreateTopicResponse:
        partitions = number("partitions", request.partitions, most=PARTITIONS_PER_TOPIC_MAX)
        factor = number("replication_factor", request.replication_factor, most=_REPLICAS_MAX)
        created = await session.decided(
            session.topics.create(
                topic_name("topic", request.topic),
                partitions=partitions or _DEFAULT,
                replication_factor=factor or _DEFAULT,
                configs=dict(request.configs),
            )
        )
        await session.topics.await_leaders([created.name])
        return CreateTopicResponse(
            topic=created.name,
            partitions=len(created.partitions),
            replication_factor=created.replication_factor,
        )

    async def topology(self, request: TopologyRequest, session: Session) -> TopologyResponse:
        return _show(session.cluster.topology(request.topics or None))

    async def manage_brokers(
        self, request: ManageBrokersRequest, session: Session
    ) -> ManageBrokersResponse:
        if not request.HasField("remove"):
            raise invalid("no action: set remove")
        leaving = number("remove.id", request.remove.id, most=INT_MAX)
        await session.decided(session.cluster.drain(leaving))
        return ManageBrokersResponse(
            id=leaving,
            message=f"broker {leaving} is draining; it leaves when its replicas have moved",
        )


def _show(topology: Topology) -> TopologyResponse:
    response = TopologyResponse(
        cluster_id=topology.cluster_id, controller=topology.controller, version=topology.version
    )
    for broker in topology.brokers:
        response.brokers.add(
            id=broker.id,
            kafka_address=str(broker.kafka),
            grpc_address="" if broker.grpc is None else str(broker.grpc),
            http_address="" if broker.http is None else str(broker.http),
            rack=broker.rack or "",
            is_alive=broker.alive,
        )
    for topic in topology.topics:
        shown = response.topics.add(name=topic.name, topic_id=bytes.fromhex(topic.id))
        for partition in topic.partitions:
            shown.partitions.add(
                partition=partition.partition,
                leader=partition.leader,
                replicas=partition.replicas,
                in_sync=partition.in_sync,
            )
    return response
