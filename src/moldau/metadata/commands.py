"""Owns the commands that change metadata: what someone asks for, not yet checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from moldau.model.ids import BrokerId, TopicId


class ConfigOperation(IntEnum):
    """Numbers as in IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """One change of one key. `value` is None for DELETE."""

    name: str
    operation: ConfigOperation
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateCluster:
    """Names the cluster; the first command of every cluster."""

    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker says where it is reached. The same incarnation may register again and move."""

    id: BrokerId
    host: str
    port: int
    rack: str | None = None
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """The caller makes the id (chance is not ours) and resolves -1 to its default counts.

    With `assignments` (partition -> brokers), `partitions` and `replication_factor` stay -1.
    """

    name: str
    topic_id: TopicId
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, Sequence[int]] | None = None
    configs: Mapping[str, str | None] = field(default_factory=dict)
    internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    """By name or by id; with both, both must name the same topic."""

    name: str | None = None
    topic_id: TopicId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions:
    """`count` is the total afterwards; `assignments` has one entry per new partition."""

    topic: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTopicConfigs:
    """IncrementalAlterConfigs: only the named keys change."""

    topic: str
    changes: Sequence[ConfigChange]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceTopicConfigs:
    """AlterConfigs: the given keys are all that is set afterwards."""

    topic: str
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterBrokerConfigs:
    """As AlterTopicConfigs, for one broker or CLUSTER_DEFAULT."""

    broker_id: BrokerId
    changes: Sequence[ConfigChange]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceBrokerConfigs:
    """As ReplaceTopicConfigs, for one broker or CLUSTER_DEFAULT."""

    broker_id: BrokerId
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds:
    """A block of ids, so that not every producer costs a write."""

    count: int


Command = (
    CreateCluster
    | RegisterBroker
    | CreateTopic
    | DeleteTopic
    | CreatePartitions
    | AlterTopicConfigs
    | ReplaceTopicConfigs
    | AlterBrokerConfigs
    | ReplaceBrokerConfigs
    | AllocateProducerIds
)
