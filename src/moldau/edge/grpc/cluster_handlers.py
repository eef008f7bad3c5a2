"""Handlers of CreateTopic, Topology and ManageBrokers."""

from collections.abc import Iterable

from moldau.api.broker import Broker
from moldau.api.lookup import select_topics
from moldau.api.metadata_changes import MetadataChanges, await_leaders
from moldau.api.queues import invalid
from moldau.edge.grpc.checks import (
    INT_MAX,
    endpoint,
    number,
    optional_name,
    required_name,
    topic_name,
)
from moldau.model.limits import PARTITIONS_PER_TOPIC_MAX
from moldau.model.topology import JoinRequest, Topology, TopologyTopic
from moldau.proto.v1.queue_pb2 import (
    AddBroker,
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
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._decisions = MetadataChanges(broker)

    async def create_topic(self, request: CreateTopicRequest) -> CreateTopicResponse:
        partitions = number("partitions", request.partitions, most=PARTITIONS_PER_TOPIC_MAX)
        factor = number("replication_factor", request.replication_factor, most=_REPLICAS_MAX)
        created = await self._decisions.result(
            self._broker.topics.create(
                topic_name("topic", request.topic),
                partitions=partitions or _DEFAULT,
                replication_factor=factor or _DEFAULT,
                configs=dict(request.configs),
            )
        )
        await await_leaders(self._broker, [created.name])
        return CreateTopicResponse(
            topic=created.name,
            partitions=len(created.partitions),
            replication_factor=created.replication_factor,
        )

    async def topology(self, request: TopologyRequest) -> TopologyResponse:
        found = self._broker.cluster.topology()
        return _show(
            found, select_topics(found, request.topics) if request.topics else found.topics
        )

    async def manage_brokers(self, request: ManageBrokersRequest) -> ManageBrokersResponse:
        match request.WhichOneof("action"):
            case "add":
                joining = _join_request(request.add)
                joined = await self._decisions.result(self._broker.cluster.join(joining))
                return ManageBrokersResponse(
                    id=joined.broker_id, message=f"broker {joined.broker_id} joined the cluster"
                )
            case "remove":
                leaving = number("remove.id", request.remove.id, most=INT_MAX)
                await self._decisions.result(self._broker.cluster.drain(leaving))
                return ManageBrokersResponse(
                    id=leaving,
                    message=f"broker {leaving} is draining; it leaves when its replicas have moved",
                )
            case _:
                raise invalid("no action: set add or remove")


def _join_request(request: AddBroker) -> JoinRequest:
    """Raises QueueRefusedError."""
    grpc = request.grpc_address
    return JoinRequest(
        incarnation=required_name("add.incarnation", request.incarnation),
        process=required_name("add.process", request.process),
        kafka=endpoint("add.kafka_address", request.kafka_address),
        raft=endpoint("add.raft_address", request.raft_address),
        http=endpoint("add.http_address", request.http_address),
        grpc=endpoint("add.grpc_address", grpc) if grpc else None,
        rack=optional_name("add.rack", request.rack) or None,
        broker_id=number("add.id", request.id, most=INT_MAX) or None,
    )


def _show(topology: Topology, topics: Iterable[TopologyTopic]) -> TopologyResponse:
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
    for topic in topics:
        shown = response.topics.add(name=topic.name, topic_id=bytes.fromhex(topic.id))
        for partition in topic.partitions:
            shown.partitions.add(
                partition=partition.partition,
                leader=partition.leader,
                replicas=partition.replicas,
                in_sync=partition.in_sync,
            )
    return response
