"""Backups: what a cluster knows beside records, and how a backup comes back into a cluster.

A backup holds what lets clients in, and a restore writes past all checks of producers. So both are
for those who administer the cluster.
"""

from collections.abc import Iterator
from typing import Final

from moldau.api.broker import Broker
from moldau.api.guard import Guard
from moldau.api.guarded.security import GuardedSecurity
from moldau.api.guarded.topics import unknown_topic
from moldau.metadata.image import Topic
from moldau.metadata.queue_groups import QueueGroup, QueueSettings
from moldau.model.backup import (
    AclCopy,
    ClusterCopy,
    ClusterToRestore,
    CredentialCopy,
    QueueGroupCopy,
    QueueStates,
    QueueToRestore,
    QuotaCopy,
    SecurityCopy,
    StartToRestore,
    TopicCopy,
    UserCopy,
)
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import Offset
from moldau.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from moldau.security.quotas import QuotaEntity
from moldau.security.scram import ScramCredential, ScramMechanism
from moldau.version import __version__

_CLUSTER: Final = ResourceType.CLUSTER


class GuardedBackup:
    """Methods raise RefusedError."""

    __slots__ = ("_broker", "_guard", "_security")

    def __init__(self, guard: Guard, broker: Broker, security: GuardedSecurity) -> None:
        self._guard = guard
        self._broker = broker
        self._security = security

    # ---- backup

    def cluster(self) -> ClusterCopy:
        """Topics, queue groups, users, ACLs and quotas."""
        self._guard.check("backup.cluster", _CLUSTER)
        image = self._broker.image
        compacted = {each.topic_id for each in self._broker.replicas if each.is_compacted}
        return ClusterCopy(
            cluster_id=image.cluster_id,
            version=__version__,
            feature_level=image.feature_level,
            next_producer_id=image.next_producer_id,
            topics=tuple(
                _topic_copy(topic, topic.topic_id in compacted)
                for topic in image.topics.values()
                if not topic.internal
            ),
            queue_groups=tuple(map(_queue_group_copy, image.queue_groups.values())),
            security=SecurityCopy(
                users=tuple(
                    UserCopy(
                        name=user.name,
                        credentials=tuple(
                            CredentialCopy(
                                mechanism=int(mechanism),
                                salt=each.salt,
                                iterations=each.iterations,
                                stored_key=each.stored_key,
                                server_key=each.server_key,
                            )
                            for mechanism, each in user.credentials.items()
                        ),
                    )
                    for user in image.users.values()
                ),
                acls=tuple(map(_acl_copy, sorted(image.acls))),
                quotas=tuple(
                    QuotaCopy(user=entity.user, client_id=entity.client_id, limits=limits)
                    for entity, limits in image.quotas.items()
                ),
            ),
        )

    async def queues(self, group: str, topic: str) -> QueueStates:
        """The state of a queue on all partitions of a topic."""
        self._guard.check("backup.queues", _CLUSTER, about=f"queue {group} on {topic}")
        found = await self._broker.queue_copies.read(group, self._topic(topic))
        return QueueStates(partitions=tuple(found))

    # ---- restore

    async def append(self, topic: str, partition: int, offset: int, data: bytearray) -> Offset:
        """Appends a run of batches to a topic that is being restored; returns the new end."""
        self._guard.check("backup.append", _CLUSTER, about=f"{topic}-{partition} at {offset}")
        return await self._broker.restore.append(topic, partition, offset, data)

    async def trim(self, wanted: StartToRestore) -> Offset:
        """Moves the start of a partition that is being restored to where it was."""
        about = f"{wanted.topic}-{wanted.partition} to {wanted.start}"
        self._guard.check("backup.trim", _CLUSTER, about=about)
        return await self._broker.restore.trim(wanted.topic, wanted.partition, wanted.start)

    async def restore_cluster(self, wanted: ClusterToRestore) -> None:
        """Users, ACLs and quotas are added to those that exist; and see `skip_below`."""
        about = f"producer ids from {wanted.producer_id_min}"
        self._guard.check("backup.restore_cluster", _CLUSTER, about=about)
        try:
            credentials = list(_credentials(wanted.security.users))
            rules = [_acl(copy) for copy in wanted.security.acls]
        except ValueError as error:
            raise RefusedError(ErrorCode.INVALID_REQUEST, f"not of a backup: {error}") from None
        await self._broker.producer_ids.skip_below(wanted.producer_id_min)
        # By the guarded service: the audit log names each user and rule, as if made by hand.
        for name, mechanism, credential in credentials:
            await self._security.put_credential(name, mechanism, credential)
        if rules:
            refused = [each for each in await self._security.create_acls(rules) if each]
            if refused:
                raise refused[0]
        for copy in wanted.security.quotas:
            entity = QuotaEntity(copy.user, copy.client_id)
            await self._security.alter_quotas(entity, dict(copy.limits))

    async def restore_queue(self, wanted: QueueToRestore) -> None:
        """The state of a queue on one partition, before its group is defined."""
        about = f"queue {wanted.group} on {wanted.topic}-{wanted.state.partition}"
        self._guard.check("backup.restore_queue", _CLUSTER, about=about)
        topic = self._topic(wanted.topic)
        await self._broker.queue_copies.write(wanted.group, topic, wanted.state, wanted.end)

    async def define_queue(self, wanted: QueueGroupCopy) -> None:
        """The group of queues whose state is restored."""
        self._guard.check("backup.define_queue", _CLUSTER, about=f"queue {wanted.name}")
        settings = QueueSettings(
            visibility_ms=wanted.visibility_ms,
            attempts_max=wanted.attempts_max,
            backoff_ms=wanted.backoff_ms,
            backoff_ms_max=wanted.backoff_ms_max,
            dead_letter_topic=wanted.dead_letter_topic,
            starts_at_end=wanted.starts_at_end,
        )
        await self._broker.queue_copies.define(wanted.name, wanted.topics, settings)

    def _topic(self, name: str) -> Topic:
        topic = self._broker.image.topic(name)
        if topic is None:
            raise unknown_topic(name)
        return topic


def _topic_copy(topic: Topic, compacted: bool) -> TopicCopy:
    return TopicCopy(
        name=topic.name,
        id=topic.topic_id.hex(),
        partitions=len(topic.partitions),
        replication_factor=max(len(partition.replicas) for partition in topic.partitions),
        configs=topic.configs,
        compacted=compacted,
    )


def _queue_group_copy(group: QueueGroup) -> QueueGroupCopy:
    settings = group.settings
    return QueueGroupCopy(
        name=group.name,
        topics=group.topics,
        visibility_ms=settings.visibility_ms,
        attempts_max=settings.attempts_max,
        backoff_ms=settings.backoff_ms,
        backoff_ms_max=settings.backoff_ms_max,
        dead_letter_topic=settings.dead_letter_topic,
        starts_at_end=settings.starts_at_end,
    )


def _acl_copy(acl: Acl) -> AclCopy:
    return AclCopy(
        resource_type=int(acl.resource_type),
        resource_name=acl.resource_name,
        pattern_type=int(acl.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission=int(acl.permission),
    )


def _acl(copy: AclCopy) -> Acl:
    """Raises ValueError."""
    return Acl(
        resource_type=ResourceType(copy.resource_type),
        resource_name=copy.resource_name,
        pattern_type=PatternType(copy.pattern_type),
        principal=copy.principal,
        host=copy.host,
        operation=Operation(copy.operation),
        permission=Permission(copy.permission),
    )


def _credentials(
    users: tuple[UserCopy, ...],
) -> Iterator[tuple[str, ScramMechanism, ScramCredential]]:
    """Raises ValueError."""
    for user in users:
        for copy in user.credentials:
            credential = ScramCredential(
                copy.salt, copy.iterations, copy.stored_key, copy.server_key
            )
            yield user.name, ScramMechanism(copy.mechanism), credential
