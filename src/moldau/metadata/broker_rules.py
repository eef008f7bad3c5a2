"""Rules for brokers: registration, drain, removal, and which brokers are accepted as peers.

A broker id belongs to one data directory permanently, because votes and acks were sent from it. So
removed brokers are remembered, and neither their id nor their directory can be used again.
"""

from collections.abc import Iterable
from typing import Any, Final

from msgspec.structs import asdict

from moldau.metadata.checks import count_brokers
from moldau.metadata.commands import (
    DrainBroker,
    KeepBroker,
    RaiseFeatureLevel,
    RegisterBroker,
    RemoveBroker,
)
from moldau.metadata.config_types import INT_MAX, shown
from moldau.metadata.image import FEATURE_LEVEL_MAX, Broker, BrokerState, Endpoint, Image
from moldau.metadata.records import (
    BrokerRegistered,
    BrokerStateSet,
    FeatureLevelSet,
    MetadataRecord,
)
from moldau.metadata.security_rules import use_join_token
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId

HOST_LENGTH_MAX: Final = 255
NAME_LENGTH_MAX: Final = 255
"""Limit of rack, machine, incarnation and process, which every broker stores."""
BROKERS_MAX: Final = 1000
LISTENERS_MAX: Final = 32
"""Kafka listeners of one broker."""


def register_broker(command: RegisterBroker, image: Image) -> list[MetadataRecord]:
    broker_id = _id_for(command, image)
    _check_described(broker_id, command)
    _check_identity(broker_id, command, image)
    if command.feature_level_max < image.feature_level:
        raise RefusedError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Broker {broker_id} supports feature level {command.feature_level_max}, but the "
            f"cluster is at {image.feature_level}: install a newer version on it",
        )
    known = image.brokers.get(broker_id)
    if known is None and len(image.brokers) >= BROKERS_MAX:
        raise _invalid(f"The cluster has {BROKERS_MAX} brokers, which is the limit")
    records = use_join_token(command, image)
    if known is None or not _same_registration(known, command):
        epoch = 1 if known is None else known.epoch + 1
        records.append(_registered(_described(command), broker_id, epoch))
    return records + _known_machines(command.lacking, image)


def _registered(given: dict[str, Any], broker_id: BrokerId, epoch: int) -> BrokerRegistered:
    stored = {
        name: value
        for name, value in given.items()
        if value or name not in ("listeners", "machine")
    }
    return BrokerRegistered(**stored, id=broker_id, epoch=epoch)


def _known_machines(lacking: Iterable[BrokerId], image: Image) -> list[MetadataRecord]:
    """The registrations of these brokers once more, where they have a machine."""
    found: list[MetadataRecord] = []
    for broker_id in lacking:
        known = image.brokers.get(broker_id)
        if known is not None and known.machine is not None:
            given = asdict(known)
            for name in ("id", "epoch", "state"):
                del given[name]
            found.append(_registered(given, known.id, known.epoch))
    return found


def drain_broker(command: DrainBroker, image: Image) -> list[MetadataRecord]:
    broker = _known_broker(command.broker_id, image)
    if broker.state is BrokerState.DRAINING:
        return []
    remaining = len(image.active_brokers()) - 1
    if remaining < 1:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"Broker {broker.id} is the last active broker and cannot be removed",
        )
    for topic in image.topics.values():
        # Internal topics may lose replicas with the number of brokers.
        for partition in () if topic.internal else topic.partitions:
            # Replicas on other leaving brokers need a new broker, too.
            if len(partition.desired) > remaining:
                raise RefusedError(
                    ErrorCode.INVALID_REPLICATION_FACTOR,
                    f"Topic '{topic.name}' has {len(partition.desired)} replicas, but the cluster "
                    f"has {count_brokers(image)}, and {remaining} without broker {broker.id}: add "
                    "a broker first, or reassign the topic to fewer replicas",
                )
    return [BrokerStateSet(broker_id=broker.id, state=BrokerState.DRAINING)]


def keep_broker(command: KeepBroker, image: Image) -> list[MetadataRecord]:
    broker = _known_broker(command.broker_id, image)
    if broker.state is BrokerState.ACTIVE:
        return []
    return [BrokerStateSet(broker_id=broker.id, state=BrokerState.ACTIVE)]


def remove_broker(command: RemoveBroker, image: Image) -> list[MetadataRecord]:
    if command.broker_id in image.removed_brokers:
        return []
    broker = _known_broker(command.broker_id, image)
    if broker.state is not BrokerState.DRAINING:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"Broker {broker.id} must be drained before it is removed"
        )
    left = replicas_on(image, broker.id)
    if left:
        raise RefusedError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"Broker {broker.id} still has {left} {'replica' if left == 1 else 'replicas'}",
        )
    if broker.id in command.metadata_members:
        raise RefusedError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"Broker {broker.id} is still a member of the metadata group",
        )
    return [BrokerStateSet(broker_id=broker.id, state=BrokerState.REMOVED)]


def raise_feature_level(command: RaiseFeatureLevel, image: Image) -> list[MetadataRecord]:
    if command.level == image.feature_level:
        return []
    if command.level < image.feature_level:
        raise RefusedError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"The feature level is {image.feature_level} and cannot be lowered to {command.level}",
        )
    if command.level > FEATURE_LEVEL_MAX:
        raise RefusedError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"This version supports feature levels up to {FEATURE_LEVEL_MAX}, not {command.level}",
        )
    behind = [
        broker for broker in image.brokers.values() if broker.feature_level_max < command.level
    ]
    if behind:
        raise RefusedError(
            ErrorCode.FEATURE_UPDATE_FAILED,
            f"Broker {behind[0].id} supports feature level {behind[0].feature_level_max}, not "
            f"{command.level}: restart it with a newer version first",
        )
    return [FeatureLevelSet(level=command.level)]


def replicas_on(image: Image, broker_id: BrokerId) -> int:
    """The number of the broker's current and desired replicas."""
    return sum(
        broker_id in partition.replicas or broker_id in partition.target
        for topic in image.topics.values()
        for partition in topic.partitions
    )


def peer_refusal(image: Image, *, broker_id: BrokerId, incarnation: str, epoch: int) -> str | None:
    """Why a broker of this cluster is rejected as a peer; None if it is accepted.

    A registration epoch newer than this image is accepted if the incarnation is known, because the
    image may lag behind the metadata leader's.
    """
    if broker_id in image.removed_brokers:
        return f"broker {broker_id} was removed from the cluster"
    known = image.brokers.get(broker_id)
    if known is None:
        return f"broker {broker_id} is not registered here yet"
    if known.incarnation != incarnation:
        return f"broker id {broker_id} belongs to another data directory"
    if epoch < known.epoch:
        return f"broker {broker_id} sent epoch {epoch}, but registered with {known.epoch} since"
    return None


def _id_for(command: RegisterBroker, image: Image) -> BrokerId:
    if command.id is not None:
        return command.id
    ever = {**image.brokers, **image.removed_brokers}
    for broker in ever.values():
        if command.incarnation and broker.incarnation == command.incarnation:
            return broker.id
    return BrokerId(max(ever, default=0) + 1)


def _check_described(broker_id: BrokerId, command: RegisterBroker) -> None:
    if not 0 <= broker_id <= INT_MAX:
        raise _invalid(f"Broker id {broker_id} must be between 0 and {INT_MAX}")
    clients = Endpoint(command.host, command.port)
    listeners = [endpoint for _, endpoint in command.listeners]
    for endpoint in (clients, command.raft, command.http, command.grpc, *listeners):
        if endpoint is not None and (
            not 0 < len(endpoint.host) <= HOST_LENGTH_MAX or not 0 < endpoint.port < 65536
        ):
            raise _invalid(
                f"Broker {broker_id} has an invalid address: {shown(endpoint.host)} "
                f"port {endpoint.port}"
            )
    if not command.incarnation:
        raise _invalid(f"Broker {broker_id} sent no incarnation id of its data directory")
    if len(listeners) > LISTENERS_MAX:
        raise _invalid(f"Broker {broker_id} has {len(listeners)} listeners, above {LISTENERS_MAX}")
    names = [name for name, _ in command.listeners]
    places = (command.rack or "", command.machine or "")
    for text in (*places, command.incarnation, command.process, *names):
        if len(text) > NAME_LENGTH_MAX:
            raise _invalid(
                f"Broker {broker_id} registers with {shown(text)}, "
                f"but the limit is {NAME_LENGTH_MAX} characters"
            )
    if command.feature_level_max < 0:
        raise _invalid(f"Feature level {command.feature_level_max} must not be negative")


def _check_identity(broker_id: BrokerId, command: RegisterBroker, image: Image) -> None:
    if broker_id in image.removed_brokers:
        raise RefusedError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Broker {broker_id} was removed from this cluster: "
            "start it with an empty data directory and another id",
        )
    known = image.brokers.get(broker_id)
    if known is not None and known.incarnation != command.incarnation:
        # Votes and acks with this id were sent from another directory.
        raise RefusedError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Broker id {broker_id} belongs to another data directory "
            f"(last at {known.host}:{known.port}): give this broker an id of its own",
        )
    for other in (*image.brokers.values(), *image.removed_brokers.values()):
        if other.id != broker_id and other.incarnation == command.incarnation:
            raise RefusedError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"The data directory of broker {broker_id} is that of broker {other.id}: "
                "a copied directory cannot be a broker of its own",
            )


def _same_registration(known: Broker, command: RegisterBroker) -> bool:
    return all(getattr(known, name) == value for name, value in _described(command).items())


def _described(command: RegisterBroker) -> dict[str, Any]:
    """What is stored of the broker. The id may be absent: the broker has got one."""
    given = asdict(command)
    for name in ("id", "join_token_id", "now_ms", "lacking"):
        del given[name]
    return given


def _known_broker(broker_id: BrokerId, image: Image) -> Broker:
    broker = image.brokers.get(broker_id)
    if broker is None:
        is_removed = broker_id in image.removed_brokers
        raise RefusedError(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"Broker {broker_id} {'was removed' if is_removed else 'is unknown'}; "
            f"known brokers: {sorted(image.brokers)}",
        )
    return broker


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REGISTRATION, message)
