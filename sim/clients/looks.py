"""An admin's looks: everything that can be asked without changing anything."""

import asyncio
from collections.abc import Sequence

from moldau.model.errors import ErrorCode
from moldau.model.topology import Endpoint
from moldau.wire.messages.api_versions import ApiVersionsRequest
from moldau.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from moldau.wire.messages.delete_groups import DeleteGroupsRequest
from moldau.wire.messages.describe_cluster import DescribeClusterRequest
from moldau.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from moldau.wire.messages.describe_groups import DescribeGroupsRequest
from moldau.wire.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsRequestTopic,
)
from moldau.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersTopic,
)
from moldau.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsCursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsTopic,
)
from moldau.wire.messages.describe_transactions import DescribeTransactionsRequest
from moldau.wire.messages.find_coordinator import FindCoordinatorRequest
from moldau.wire.messages.list_groups import ListGroupsRequest
from moldau.wire.messages.list_transactions import ListTransactionsRequest
from moldau.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from moldau.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from sim.clients.own_topics import BROKER_KIND
from sim.clients.session import RETRIABLE, Session
from sim.clients.wire import Kafka
from sim.machine import ask_http
from sim.scene import Scene

_PATHS = (
    "/",
    "/healthz",
    "/readyz",
    "/metrics",
    "/api/v1/topology",
    "/api/v1/brokers",
    "/api/v1/topics",
    "/api/v1/groups",
    "/api/v1/queues",
    "/api/v1/openapi.json",
    "/nowhere",
)


class Looks:
    """Each is answered, whatever it says."""

    def __init__(self, scene: Scene, kafka: Kafka) -> None:
        self._scene = scene
        self._kafka = kafka
        self._rng = kafka.rng

    async def do(self, names: Sequence[str]) -> None:
        """Raises Lost."""
        looks = (
            self._cluster,
            self._log_dirs,
            self._topic_partitions,
            self._producers,
            self._epochs,
            self._metadata,
            self._versions,
            self._broker_settings,
            self._coordinated,
            self._http,
        )
        session = await Session.begin(self._kafka)
        await self._rng.choice(looks)(session, names)

    async def setting(self, session: Session, kind: int, name: str, key: str) -> str | None:
        """As a broker shows it; None: it shows none. Raises Lost."""
        resource = DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=[key]
        )
        answer = await session.ask(
            DescribeConfigsRequest(
                resources=[resource],
                include_synonyms=self._rng.random() < 0.5,
            )
        )
        reported = answer.results[0]
        return reported.configs[0].value if not reported.error_code and reported.configs else None

    async def _cluster(self, session: Session, names: Sequence[str]) -> None:
        answer = await session.ask(
            DescribeClusterRequest(include_cluster_authorized_operations=self._rng.random() < 0.5)
        )
        if answer.error_code or not answer.brokers:
            self._scene.violation(f"DescribeCluster: {answer.error_code}, {answer.brokers}")

    async def _log_dirs(self, session: Session, names: Sequence[str]) -> None:
        asked = None
        if self._rng.random() < 0.5:
            asked = [DescribeLogDirsRequestTopic(topic=n, partitions=[0, 1, 99]) for n in names]
        answer = await session.ask(DescribeLogDirsRequest(topics=asked))
        for result in answer.results:
            if result.error_code:
                self._scene.violation(f"DescribeLogDirs: {ErrorCode(result.error_code).name}")

    async def _topic_partitions(self, session: Session, names: Sequence[str]) -> None:
        """Page by page: no partition comes twice."""
        asked = [DescribeTopicPartitionsTopic(name=name) for name in sorted(names)]
        if self._rng.random() < 0.5:
            asked = []
        limit = self._rng.choice((1, 2, 2000))
        cursor = None
        seen: set[tuple[str, int]] = set()
        for _ in range(30):
            answer = await session.ask(
                DescribeTopicPartitionsRequest(
                    topics=asked, response_partition_limit=limit, cursor=cursor
                )
            )
            for topic in answer.topics:
                for partition in topic.partitions:
                    place = (topic.name, partition.partition_index)
                    if place in seen:
                        self._scene.violation(f"{place} comes twice with a cursor")
                    seen.add(place)
            reported = answer.next_cursor
            if reported is None:
                return
            cursor = DescribeTopicPartitionsCursor(
                topic_name=reported.topic_name, partition_index=reported.partition_index
            )

    async def _producers(self, session: Session, names: Sequence[str]) -> None:
        asked = [DescribeProducersTopic(name=n, partition_indexes=[0, 77]) for n in ("log", *names)]
        answer = await session.ask(DescribeProducersRequest(topics=asked))
        for topic in answer.topics:
            for each in topic.partitions:
                self._expect(each.error_code, "DescribeProducers")

    async def _epochs(self, session: Session, names: Sequence[str]) -> None:
        asked = OffsetForLeaderPartition(
            partition=0,
            current_leader_epoch=self._rng.choice((-1, 1, 3)),
            leader_epoch=self._rng.randint(0, 6),
        )
        topics = [OffsetForLeaderTopic(topic=name, partitions=[asked]) for name in ("log", *names)]
        answer = await session.ask(OffsetForLeaderEpochRequest(topics=topics))
        for topic in answer.topics:
            for each in topic.partitions:
                self._expect(each.error_code, "OffsetForLeaderEpoch")

    def _expect(self, number: int, what: str) -> None:
        code = ErrorCode(number)
        allowed = {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        if code not in RETRIABLE | allowed:
            self._scene.violation(f"{what}: {code.name}")

    async def _metadata(self, session: Session, names: Sequence[str]) -> None:
        named = [MetadataRequestTopic(name=name) for name in (*names, "nobody")]
        topics = self._rng.choice((None, [], named))
        await session.ask(
            MetadataRequest(
                topics=topics,
                allow_auto_topic_creation=self._rng.random() < 0.5,
                include_topic_authorized_operations=self._rng.random() < 0.5,
            ),
            first=8,
        )
        answer = await session.ask(MetadataRequest(topics=named), version=self._rng.randint(0, 3))
        if not answer.brokers:
            self._scene.violation(f"{session.address} knows no brokers")

    async def _versions(self, session: Session, names: Sequence[str]) -> None:
        answer = await session.ask(
            ApiVersionsRequest(client_software_name="sim", client_software_version="1")
        )
        if answer.error_code or not answer.api_keys:
            self._scene.violation(f"ApiVersions: {answer.error_code}")

    async def _broker_settings(self, session: Session, names: Sequence[str]) -> None:
        for broker in sorted(self._kafka.brokers):
            await self.setting(session, BROKER_KIND, str(broker), "log.segment.bytes")

    async def _coordinated(self, session: Session, names: Sequence[str]) -> None:
        """Groups and transactions that there are not."""
        kind = self._rng.randint(0, 1)
        await session.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=["x"]), version=4)
        await session.ask(ListGroupsRequest())
        await session.ask(DescribeGroupsRequest(groups=["x"]))
        await session.ask(ConsumerGroupDescribeRequest(group_ids=["x"]))
        await session.ask(DeleteGroupsRequest(groups_names=["x"]))
        await session.ask(ListTransactionsRequest(state_filters=[], producer_id_filters=[]))
        await session.ask(DescribeTransactionsRequest(transactional_ids=["x"]))

    async def _http(self, session: Session, names: Sequence[str]) -> None:
        """Over the product's own API."""
        paths = [*_PATHS, *(f"/api/v1/topics/{name}" for name in names)]
        address = Endpoint(session.address[0], 8080)
        for path in self._rng.sample(paths, 3):
            try:
                async with asyncio.timeout(10.0):
                    answer = await ask_http(address, "GET", path, b"")
            except (OSError, EOFError, TimeoutError):
                return
            if answer.status >= 500 and answer.status not in (503, 504):
                self._scene.violation(f"{path}: {answer.status} {answer.body!r}")
