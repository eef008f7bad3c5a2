"""Which rights each use case needs: the one table that the guarded services enforce.

A key is `service.method` of a session. A use case without an entry cannot be called: the guard
finds no rule, and a test compares this table with the guarded services. Rights are those that Kafka
requires; work queues follow the same idea.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from moldau.security.acl import Operation, ResourceType

TOPIC: Final = ResourceType.TOPIC
GROUP: Final = ResourceType.GROUP
CLUSTER: Final = ResourceType.CLUSTER
TRANSACTIONAL_ID: Final = ResourceType.TRANSACTIONAL_ID


class Rule(Struct, frozen=True, kw_only=True):
    """The rights for one use case: all of `needs` that the call is about."""

    needs: Mapping[ResourceType, Operation]
    or_on_cluster: Operation | None = None
    """Enough instead of any of `needs`."""
    or_on_any_topic: Operation | None = None
    """The same, on any topic that there may be."""
    changes: bool = False
    """Whether it changes something: refused by a read-only listener."""
    audited: bool = False
    """Whether it is in the audit log when it is allowed; what is denied always is."""
    open_because: str = ""
    """Why every client may do it; only without `needs`."""


def _read(needs: Mapping[ResourceType, Operation], or_on_cluster: Operation | None = None) -> Rule:
    return Rule(needs=needs, or_on_cluster=or_on_cluster)


def _use(needs: Mapping[ResourceType, Operation]) -> Rule:
    """Changes something so often that only refusals are worth a line in the audit log."""
    return Rule(needs=needs, changes=True)


def _change(
    needs: Mapping[ResourceType, Operation], or_on_cluster: Operation | None = None
) -> Rule:
    return Rule(needs=needs, or_on_cluster=or_on_cluster, changes=True, audited=True)


def _anyone(why: str) -> Rule:
    return Rule(needs={}, open_because=why)


_DESCRIBE_TOPIC: Final = {TOPIC: Operation.DESCRIBE}
_DESCRIBE_GROUP: Final = {GROUP: Operation.DESCRIBE}
_DESCRIBE_CLUSTER: Final = {CLUSTER: Operation.DESCRIBE}
_ALTER_CLUSTER: Final = {CLUSTER: Operation.ALTER}
_READ_TOPIC: Final = {TOPIC: Operation.READ}
_WRITE_TOPIC: Final = {TOPIC: Operation.WRITE}
_READ_GROUP: Final = {GROUP: Operation.READ}
_WRITE_TRANSACTION: Final = {TRANSACTIONAL_ID: Operation.WRITE}
_CONSUME: Final = {GROUP: Operation.READ, TOPIC: Operation.READ}

_OPERATE: Final = _change(_ALTER_CLUSTER, or_on_cluster=Operation.ALTER_CONFIGS)
"""Who runs the brokers need not have ALTER, which is also the right to create ACLs."""

_ADDRESSES: Final = "a client needs the addresses of the brokers to connect; Kafka shows them, too"

RULES: Final[Mapping[str, Rule]] = {
    # Topics.
    "topics.find": _read(_DESCRIBE_TOPIC),
    "topics.get": _read(_DESCRIBE_TOPIC),
    "topics.find_by_id": _read(_DESCRIBE_TOPIC),
    "topics.name_of": _read(_DESCRIBE_TOPIC),
    "topics.all": _read(_DESCRIBE_TOPIC),
    "topics.config_of": _read({TOPIC: Operation.DESCRIBE_CONFIGS}),
    "topics.create": _change({TOPIC: Operation.CREATE}, or_on_cluster=Operation.CREATE),
    "topics.ensure": _change({TOPIC: Operation.CREATE}, or_on_cluster=Operation.CREATE),
    "topics.delete": _change({TOPIC: Operation.DELETE}),
    "topics.add_partitions": _change({TOPIC: Operation.ALTER}),
    "topics.delete_records": _change({TOPIC: Operation.DELETE}),
    "topics.trim": _change({TOPIC: Operation.DELETE}),
    "topics.await_leaders": _anyone("it only waits, and returns nothing"),
    # Settings: of topics, or of brokers, which are the cluster's.
    "configs.describe": _read(
        {TOPIC: Operation.DESCRIBE_CONFIGS, CLUSTER: Operation.DESCRIBE_CONFIGS}
    ),
    "configs.describe_topic": _read({TOPIC: Operation.DESCRIBE_CONFIGS}),
    "configs.alter": _change({TOPIC: Operation.ALTER_CONFIGS, CLUSTER: Operation.ALTER_CONFIGS}),
    "configs.alter_topic": _change({TOPIC: Operation.ALTER_CONFIGS}),
    "configs.topic_settings": _anyone("it is documentation; what is set is left out of it"),
    "configs.replace": _change({TOPIC: Operation.ALTER_CONFIGS, CLUSTER: Operation.ALTER_CONFIGS}),
    # Records.
    "produce.append": _use(_WRITE_TOPIC),
    "transactional_produce.append": _use(
        {TRANSACTIONAL_ID: Operation.WRITE, TOPIC: Operation.WRITE}
    ),
    "appends.check": _use(_WRITE_TOPIC),
    "appends.partitions_for": _use(_WRITE_TOPIC),
    "appends.store": _use(_WRITE_TOPIC),
    "fetch.fetch": _read(_READ_TOPIC),
    "fetch.fetch_in_session": _read(_READ_TOPIC),
    "fetch.read_page": _read(_READ_TOPIC),
    "search.page": _read(_READ_TOPIC),
    "search.live": _read(_READ_TOPIC),
    "search.next_live": _read(_READ_TOPIC),
    "offsets.list_offset": _read(_DESCRIBE_TOPIC),
    "offsets.at": _read(_DESCRIBE_TOPIC),
    "offsets.epoch_end": _read(_DESCRIBE_TOPIC),
    "offsets.producers": _read(_READ_TOPIC),
    # Groups. The first search for a coordinator creates their topic: "start_coordinators". A commit
    # to a group that members use, and by none of them, is "reset_offsets", too.
    "groups.join": _use(_READ_GROUP),
    "groups.sync": _use(_READ_GROUP),
    "groups.heartbeat": _use(_READ_GROUP),
    "groups.leave": _use(_READ_GROUP),
    "groups.consumer_heartbeat": _use({GROUP: Operation.READ, TOPIC: Operation.DESCRIBE}),
    "groups.commit_offsets": _use(_CONSUME),
    "groups.reset_offsets": _change(_READ_GROUP),
    "groups.reset": _change(_CONSUME),
    "groups.fetch_offsets": _read({GROUP: Operation.DESCRIBE, TOPIC: Operation.DESCRIBE}),
    "groups.delete_offsets": _change({GROUP: Operation.DELETE, TOPIC: Operation.READ}),
    "groups.describe": _read(_DESCRIBE_GROUP),
    "groups.describe_consumers": _read({GROUP: Operation.DESCRIBE, TOPIC: Operation.DESCRIBE}),
    "groups.list_groups": _read(_DESCRIBE_GROUP, or_on_cluster=Operation.DESCRIBE),
    "groups.delete_groups": _change({GROUP: Operation.DELETE}),
    "groups.find_coordinator": _read(_DESCRIBE_GROUP),
    "groups.start_coordinators": _use(_DESCRIBE_GROUP),
    "groups.are_stored": _anyone("it says only whether there was ever a group"),
    "queries.groups": _read(_DESCRIBE_GROUP, or_on_cluster=Operation.DESCRIBE),
    "queries.offsets_at": _read(_DESCRIBE_TOPIC),
    "queries.groups_of_topic": _read({TOPIC: Operation.DESCRIBE, GROUP: Operation.DESCRIBE}),
    "queries.extents": _read(_DESCRIBE_TOPIC),
    "queries.topic_figures": _read(_DESCRIBE_TOPIC),
    "queries.group_lags": _read(_DESCRIBE_GROUP, or_on_cluster=Operation.DESCRIBE),
    "queries.position_lags": _read({GROUP: Operation.DESCRIBE, TOPIC: Operation.DESCRIBE}),
    # Producers and transactions.
    "producer_ids.take": Rule(
        needs={CLUSTER: Operation.IDEMPOTENT_WRITE}, or_on_any_topic=Operation.WRITE, changes=True
    ),
    "transactions.init_producer": _use(_WRITE_TRANSACTION),
    "transactions.end": _use(_WRITE_TRANSACTION),
    "transactions.add_partitions": _use(
        {TRANSACTIONAL_ID: Operation.WRITE, TOPIC: Operation.WRITE}
    ),
    "transactions.add_offsets": _use({TRANSACTIONAL_ID: Operation.WRITE, GROUP: Operation.READ}),
    "transactions.commit_offsets": _use(
        {TRANSACTIONAL_ID: Operation.WRITE, GROUP: Operation.READ, TOPIC: Operation.READ}
    ),
    "transactions.abort_hanging": _change(_ALTER_CLUSTER, or_on_cluster=Operation.CLUSTER_ACTION),
    "transactions.describe": _read(
        {TRANSACTIONAL_ID: Operation.DESCRIBE, TOPIC: Operation.DESCRIBE}
    ),
    "transactions.list_transactions": _read({TRANSACTIONAL_ID: Operation.DESCRIBE}),
    "transactions.find_coordinator": _read({TRANSACTIONAL_ID: Operation.DESCRIBE}),
    "transactions.start_coordinators": _use({TRANSACTIONAL_ID: Operation.DESCRIBE}),
    "cluster_transactions.page": _read(
        {TRANSACTIONAL_ID: Operation.DESCRIBE, TOPIC: Operation.DESCRIBE}
    ),
    "cluster_transactions.hanging": _read(_READ_TOPIC),
    "cluster_transactions.abort": _change(_WRITE_TRANSACTION),
    "cluster_transactions.abort_hanging": _change(
        _ALTER_CLUSTER, or_on_cluster=Operation.CLUSTER_ACTION
    ),
    # The cluster.
    "cluster.cluster_id": _anyone(_ADDRESSES),
    "cluster.controller_id": _anyone(_ADDRESSES),
    "cluster.brokers": _anyone(_ADDRESSES),
    "cluster.alive": _anyone(_ADDRESSES),
    "cluster.is_cut_off": _anyone(_ADDRESSES),
    "cluster.health": _anyone("load balancers and supervisors probe it"),
    "cluster.topology": _read(_DESCRIBE_TOPIC),
    "cluster.leader_of": _read(_DESCRIBE_TOPIC),
    "cluster.leaders_and_in_sync": _read(_DESCRIBE_TOPIC),
    "cluster.remote_leader": _read(_DESCRIBE_TOPIC),
    "cluster.join_challenge": _anyone("it is a random number"),
    "cluster.join_proven": Rule(
        needs={},
        changes=True,
        audited=True,
        open_because="the request proves that it may be made",
    ),
    "cluster.drain": _OPERATE,
    "cluster.keep": _OPERATE,
    "cluster.reassign": _OPERATE,
    "cluster.recover": _OPERATE,
    "cluster.reassignments": _read(_DESCRIBE_CLUSTER),
    "cluster.elections_due": _OPERATE,
    "cluster.elect": _OPERATE,
    "cluster.log_dirs": _read(_DESCRIBE_CLUSTER),
    "cluster.metrics": _read(_DESCRIBE_CLUSTER),
    "cluster.report": _read(_DESCRIBE_CLUSTER),
    "pipelines.board": _read(_DESCRIBE_CLUSTER),
    "cluster.overview": _read(_DESCRIBE_CLUSTER),
    "cluster.connections": _read(_DESCRIBE_CLUSTER),
    "cluster.raft_groups": _read(_DESCRIBE_CLUSTER),
    # Users, ACLs, quotas, and tokens for new brokers.
    "security.users": _read(_DESCRIBE_CLUSTER),
    "security.put_password": _change(_ALTER_CLUSTER),
    "security.put_credential": _change(_ALTER_CLUSTER),
    "security.delete_credential": _change(_ALTER_CLUSTER),
    "security.delete_user": _change(_ALTER_CLUSTER),
    "security.acls": _read(_DESCRIBE_CLUSTER),
    "security.create_acls": _change(_ALTER_CLUSTER),
    "security.delete_acls": _change(_ALTER_CLUSTER),
    "security.quotas": _read({CLUSTER: Operation.DESCRIBE_CONFIGS}),
    "security.alter_quotas": _change({CLUSTER: Operation.ALTER_CONFIGS}),
    "security.join_tokens": _read(_DESCRIBE_CLUSTER),
    "security.create_join_token": _change(_ALTER_CLUSTER),
    "security.delete_join_token": _change(_ALTER_CLUSTER),
    # Faults on purpose, on clusters that were started to be played with.
    "play.is_offered": _anyone("it says only how the broker was started"),
    "play.board": _read(_DESCRIBE_CLUSTER),
    "play.do": _change(_ALTER_CLUSTER),
    # Backups: they hold what lets clients in, and a restore writes past the checks of producers.
    "backup.cluster": _read(_ALTER_CLUSTER),
    "backup.queues": _read(_ALTER_CLUSTER),
    "backup.append": _use(_ALTER_CLUSTER),
    "backup.trim": _change(_ALTER_CLUSTER),
    "backup.restore_cluster": _change(_ALTER_CLUSTER),
    "backup.restore_queue": _change(_ALTER_CLUSTER),
    "backup.define_queue": _change(_ALTER_CLUSTER),
    # Work queues. Who defines a queue by "connect" also needs rights on its dead-letter topic:
    # "queues.bury".
    "queues.connect": _use(_CONSUME),
    "queues.define": _change(_READ_GROUP),
    "queues.bury": _use(_WRITE_TOPIC),
    "queues.bury_in_new_topic": Rule(
        needs={TOPIC: Operation.CREATE}, or_on_cluster=Operation.CREATE, changes=True
    ),
    "queues.heartbeat": _use({GROUP: Operation.READ, TOPIC: Operation.DESCRIBE}),
    "queues.disconnect": _use(_READ_GROUP),
    "queues.poll": _use(_CONSUME),
    "queues.ack": _use(_CONSUME),
    "queues.nack": _use(_CONSUME),
    "queues.extend": _use(_CONSUME),
    "queues.stats": _read({GROUP: Operation.DESCRIBE, TOPIC: Operation.DESCRIBE}),
    "queues.peek": _read(_CONSUME),
    "queues.list_groups": _read({GROUP: Operation.DESCRIBE, TOPIC: Operation.DESCRIBE}),
    "queues.known_groups": _read({GROUP: Operation.DESCRIBE, TOPIC: Operation.DESCRIBE}),
    "queues.delete_group": _change({GROUP: Operation.DELETE}),
    # Those who look after a queue. The topic of a redrive is its target. What is read from the
    # dead-letter topic, or deleted there, needs the right on that topic, too: "letters".
    "queue_admin.show": _read({GROUP: Operation.DESCRIBE, TOPIC: Operation.DESCRIBE}),
    "queue_admin.dead_letters": _read(_CONSUME),
    "queue_admin.redrive": _change({GROUP: Operation.READ, TOPIC: Operation.WRITE}),
    "queue_admin.purge": _change(_CONSUME),
    "queue_admin.read_letters": _read(_READ_TOPIC),
    "queue_admin.delete_letters": _use({TOPIC: Operation.DELETE}),
}
