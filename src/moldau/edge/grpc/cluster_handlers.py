"""Owns CreateTopic, Topology and ManageBrokers: what concerns the cluster as a whole."""

from collections.abc import Iterable

from moldau.api.broker import Broker
from moldau.api.metadata_changes import MetadataChanges, await_leaders
from moldau.edge.grpc.calls import Call
from moldau.edge.grpc.checks import INT_MAX, endpoint, needed_name, number, short_name, topic_name
from moldau.edge.grpc.errors import invalid
from moldau.model.errors import ErrorCode, RefusedError
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

_BY_DEFAULT = -1
_REPLICAS_MAX = 32_767


class ClusterHandlers:
    """Asks the cluster, and changes it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._decisions = MetadataChanges(broker)

    async def create_topic(
        self, request: CreateTopicRequest, call: Call[CreateTopicRequest, CreateTopicResponse]
    ) -> CreateTopicResponse:
        partitions = number("partitions", request.partitions, most=PARTITIONS_PER_TOPIC_MAX)
        factor = number("replication_factor", request.replication_factor, most=_REPLICAS_MAX)
        made = await self._decisions.result(
            self._broker.topics.create(
                topic_name("topic", request.topic),
                partitions=partitions or _BY_DEFAULT,
                replication_factor=factor or _BY_DEFAULT,
                configs=dict(request.configs),
            )
        )
        await await_leaders(self._broker, made)
        return CreateTopicResponse(
            topic=made.name,
            partitions=len(made.partitions),
            replication_factor=made.replication_factor,
        )

    async def topology(
        self, request: TopologyRequest, call: Call[TopologyRequest, TopologyResponse]
    ) -> TopologyResponse:
        found = self._broker.cluster.topology()
        return _show(found, _only(found, request.topics) if request.topics else found.topics)

    async def manage_brokers(
        self, request: ManageBrokersRequest, call: Call[ManageBrokersRequest, ManageBrokersResponse]
    ) -> ManageBrokersResponse:
        match request.WhichOneof("action"):
            case "add":
                wanted = _join_request(request.add)
                joined = await self._decisions.result(self._broker.cluster.join(wanted))
                return ManageBrokersResponse(
                    id=joined.broker_id, message=f"broker {joined.broker_id} is a member"
                )
            case "remove":
                leaving = number("remove.id", request.remove.id, most=INT_MAX)
                await self._decisions.result(self._broker.cluster.drain(leaving))
                return ManageBrokersResponse(
                    id=leaving, message=f"broker {leaving} leaves when its replicas have moved away"
                )
            case _:
                raise invalid("there is nothing to do: neither add nor remove")


def _join_request(asked: AddBroker) -> JoinRequest:
    """Raises QueueRefusedError."""
    grpc = asked.grpc_address
    return JoinRequest(
        incarnation=needed_name("add.incarnation", asked.incarnation),
        process=needed_name("add.process", asked.process),
        kafka=endpoint("add.kafka_address", asked.kafka_address),
        raft=endpoint("add.raft_address", asked.raft_address),
        http=endpoint("add.http_address", asked.http_address),
        grpc=endpoint("add.grpc_address", grpc) if grpc else None,
        rack=short_name("add.rack", asked.rack) or None,
        broker_id=number("add.id", asked.id, most=INT_MAX) or None,
    )


def _only(topology: Topology, names: Iterable[str]) -> list[TopologyTopic]:
    by_name = {topic.name: topic for topic in topology.topics}
    found = []
    for name in dict.fromkeys(names):
        topic = by_name.get(name)
        if topic is None:
            raise RefusedError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist"
            )
        found.append(topic)
    return found


def _show(topology: Topology, topics: Iterable[TopologyTopic]) -> TopologyResponse:
    answer = TopologyResponse(
        cluster_id=topology.cluster_id, controller=topology.controller, version=topology.version
    )
    for broker in topology.brokers:
        answer.brokers.add(
            id=broker.id,
            kafka_address=str(broker.kafka),
            grpc_address="" if broker.grpc is None else str(broker.grpc),
            http_address="" if broker.http is None else str(broker.http),
            rack=broker.rack or "",
            is_alive=broker.alive,
        )
    for topic in topics:
        shown = answer.topics.add(name=topic.name, topic_id=bytes.fromhex(topic.id))
        for partition in topic.partitions:
            shown.partitions.add(
                partition=partition.partition,
                leader=partition.leader,
                replicas=partition.replicas,
                in_sync=partition.in_sync,
            )
    return answer
