"""The RPCs between brokers. The numbers are sent on the wire: never change or reuse one."""

from enum import IntEnum, unique
from typing import Final


@unique
class PeerMethod(IntEnum):
    """The method of a peer request."""

    SUBMIT_COMMAND = 1
    ANNOUNCE_LEADERS = 2
    TRANSFER_LEADERSHIP = 3
    FRESH_METADATA_OFFSET = 4
    WRITE_MARKERS = 5
    ADMIT_TO_TRANSACTION = 6
    REPLICATED_OFFSETS = 7
    CAN_LOSE_REPLICA = 8
    READ_CLOCK = 9
    SURVEY_REPLICAS = 10
    MAKE_ONLY_VOTER = 11
    PARTITION_EXTENTS = 20
    LIST_GROUPS = 21
    APPEND = 22
    DELETE_RECORDS = 26
    GROUPS_OF_TOPIC = 27
    OFFSETS_AT = 28
    LEDGER_READ = 30
    LEDGER_WRITE = 31
    LEDGER_FORGET = 32
    QUEUE_HEARTBEAT = 35
    QUEUE_MEMBER_LEFT = 36
    QUEUE_COMMIT = 37
    QUEUE_OFFSETS = 38
    QUEUE_DESCRIBE = 39
    QUEUE_SHOW = 45
    QUEUE_DEAD_LETTERS = 46
    QUEUE_REDRIVE = 47
    QUEUE_PURGE = 48
    SEARCH_PIECES = 50
    FOLLOW_PARTITIONS = 51
    RELAY_OPEN = 60
    RELAY_NEXT = 61
    RELAY_CLOSE = 62
    BROKER_SAMPLE = 63
    TOPIC_STATS = 64
    GROUP_LAGS = 65
    LIST_CONNECTIONS = 70
    DESCRIBE_RAFT_GROUPS = 71
    TRANSACTIONS = 74
    OPEN_PRODUCERS = 75
    PIPELINES = 78
    ABORT_TRANSACTION = 76
    ABORT_HANGING = 77


FOR_OPERATORS: Final = frozenset(
    {
        PeerMethod.PARTITION_EXTENTS,
        PeerMethod.LIST_GROUPS,
        PeerMethod.DELETE_RECORDS,
        PeerMethod.GROUPS_OF_TOPIC,
        PeerMethod.OFFSETS_AT,
        PeerMethod.QUEUE_SHOW,
        PeerMethod.QUEUE_DEAD_LETTERS,
        PeerMethod.QUEUE_REDRIVE,
        PeerMethod.QUEUE_PURGE,
        PeerMethod.SEARCH_PIECES,
        PeerMethod.FOLLOW_PARTITIONS,
        PeerMethod.RELAY_OPEN,
        PeerMethod.RELAY_NEXT,
        PeerMethod.RELAY_CLOSE,
        PeerMethod.BROKER_SAMPLE,
        PeerMethod.TOPIC_STATS,
        PeerMethod.GROUP_LAGS,
        PeerMethod.LIST_CONNECTIONS,
        PeerMethod.DESCRIBE_RAFT_GROUPS,
        PeerMethod.TRANSACTIONS,
        PeerMethod.OPEN_PRODUCERS,
        PeerMethod.PIPELINES,
        PeerMethod.ABORT_TRANSACTION,
        PeerMethod.ABORT_HANGING,
    }
)
"""What only the HTTP API and the console need. They have places of their own, see `rpc`: however
slow they are, the methods that the cluster lives on are served."""
