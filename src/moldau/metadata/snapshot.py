"""Format of a whole image: in snapshots of the metadata log, and for joining brokers.

One version byte, then a msgpack map by field name, as in `records`. No checksum: files and
connections have their own. Memory is bounded by the input: msgpack allocates nothing for announced
lengths.
"""

import math
from typing import Final

import msgspec

from moldau.metadata.image import Broker, BrokerState, Image, Topic, collision_key
from moldau.metadata.queue_groups import QueueGroup
from moldau.metadata.security import JoinToken, User
from moldau.model.errors import CorruptionError, RefusedError
from moldau.model.ids import NO_TOPIC_ID, BrokerId, ProducerId
from moldau.security.acl import Acl
from moldau.security.acl_checks import check_acl
from moldau.security.quotas import QuotaEntity

SNAPSHOT_FORMAT: Final = 1
SNAPSHOT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Some millions of partitions: 10,000 with three replicas need 0.5 MB."""


class _Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Derived maps (ids, colliding names) are not stored."""

    cluster_id: str
    version: int
    brokers: tuple[Broker, ...]
    removed_brokers: tuple[Broker, ...] = ()
    topics: tuple[Topic, ...]
    broker_configs: dict[BrokerId, dict[str, str]]
    next_producer_id: ProducerId
    feature_level: int = 0
    queue_groups: tuple[QueueGroup, ...] = ()
    users: tuple[User, ...] = ()
    acls: tuple[Acl, ...] = ()
    quotas: tuple[tuple[QuotaEntity, dict[str, float]], ...] = ()
    join_tokens: tuple[JoinToken, ...] = ()


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Snapshot)
_PREFIX: Final = bytes([SNAPSHOT_FORMAT])


def encode_image(image: Image) -> bytes:
    return _PREFIX + _encoder.encode(
        _Snapshot(
            cluster_id=image.cluster_id,
            version=image.version,
            brokers=tuple(image.brokers.values()),
            removed_brokers=tuple(image.removed_brokers.values()),
            topics=tuple(image.topics.values()),
            broker_configs={
                broker: dict(configs) for broker, configs in image.broker_configs.items()
            },
            next_producer_id=image.next_producer_id,
            feature_level=image.feature_level,
            queue_groups=tuple(image.queue_groups.values()),
            users=tuple(image.users.values()),
            # Sorted: equal images have equal snapshots.
            acls=tuple(sorted(image.acls)),
            quotas=tuple((entity, dict(limits)) for entity, limits in image.quotas.items()),
            join_tokens=tuple(image.join_tokens.values()),
        )
    )


def decode_image(
    data: bytes | bytearray | memoryview, bytes_max: int = SNAPSHOT_BYTES_MAX
) -> Image:
    """Raises CorruptionError if the data is not a valid image."""
    view = memoryview(data)
    if not len(view):
        raise CorruptionError("metadata snapshot is empty")
    if len(view) > bytes_max:
        raise CorruptionError(f"metadata snapshot has {len(view)} bytes, the limit is {bytes_max}")
    if view[0] != SNAPSHOT_FORMAT:
        raise CorruptionError(
            f"metadata snapshot has format {view[0]}, this version reads {SNAPSHOT_FORMAT}: "
            "it was written by a newer moldau"
        )
    try:
        snapshot = _decoder.decode(view[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"metadata snapshot is malformed: {error}") from error
    _check(snapshot)
    return Image(
        cluster_id=snapshot.cluster_id,
        brokers={broker.id: broker for broker in snapshot.brokers},
        removed_brokers={broker.id: broker for broker in snapshot.removed_brokers},
        feature_level=snapshot.feature_level,
        topics={topic.name: topic for topic in snapshot.topics},
        topics_by_id={topic.topic_id: topic for topic in snapshot.topics},
        collision_names={collision_key(topic.name): topic.name for topic in snapshot.topics},
        broker_configs=snapshot.broker_configs,
        next_producer_id=snapshot.next_producer_id,
        queue_groups={group.name: group for group in snapshot.queue_groups},
        users={user.name: user for user in snapshot.users},
        acls=frozenset(snapshot.acls),
        quotas=dict(snapshot.quotas),
        join_tokens={token.id: token for token in snapshot.join_tokens},
        version=snapshot.version,
    )


def _check(snapshot: _Snapshot) -> None:
    """Invariants of images beyond their types."""
    ids = [broker.id for broker in (*snapshot.brokers, *snapshot.removed_brokers)]
    if len(set(ids)) != len(ids):
        raise CorruptionError("metadata snapshot names a broker twice")
    for broker in snapshot.brokers:
        if broker.state is BrokerState.REMOVED:
            raise CorruptionError(f"metadata snapshot lists the removed broker {broker.id}")
    topics = snapshot.topics
    if len({collision_key(topic.name) for topic in topics}) != len(topics) or len(
        {topic.topic_id for topic in topics}
    ) != len(topics):
        raise CorruptionError("metadata snapshot names a topic twice")
    for topic in topics:
        if len(topic.topic_id) != len(NO_TOPIC_ID):
            raise CorruptionError(f"metadata snapshot has an invalid id for topic '{topic.name}'")
        for index, partition in enumerate(topic.partitions):
            if partition.index != index or not partition.replicas:
                raise CorruptionError(
                    f"metadata snapshot has an invalid partition {index} of '{topic.name}'"
                )
    _check_security(snapshot)
    groups = snapshot.queue_groups
    if len({group.name for group in groups}) != len(groups):
        raise CorruptionError("metadata snapshot names a queue group twice")
    names = {topic.name for topic in topics}
    for group in groups:
        if not names.issuperset(group.topics):
            raise CorruptionError(
                f"metadata snapshot has queue group '{group.name}' with topics that do not exist"
            )


def _check_security(snapshot: _Snapshot) -> None:
    for what, names in (
        ("a user", [user.name for user in snapshot.users]),
        ("an ACL", list(snapshot.acls)),
        ("a quota", [entity for entity, _ in snapshot.quotas]),
        ("a join token", [token.id for token in snapshot.join_tokens]),
    ):
        if len(set(names)) != len(names):
            raise CorruptionError(f"metadata snapshot names {what} twice")
    for user in snapshot.users:
        if not user.credentials:
            raise CorruptionError(f"metadata snapshot has user '{user.name}' without credentials")
    for entity, limits in snapshot.quotas:
        if not limits or not all(math.isfinite(limit) and limit > 0 for limit in limits.values()):
            raise CorruptionError(f"metadata snapshot has an invalid quota of {entity}")
    for acl in snapshot.acls:
        try:
            check_acl(acl)
        except RefusedError as error:
            # A rule that is dropped may be a deny: better no start than a wrong permission.
            raise CorruptionError(f"metadata snapshot has an invalid rule: {error}") from None
