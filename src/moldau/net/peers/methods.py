"""The RPCs between brokers. The numbers are sent on the wire: never change or reuse one."""

from enum import IntEnum, unique


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
    SEARCH_PIECES = 50
    FOLLOW_PARTITIONS = 51
    RELAY_OPEN = 60
    RELAY_NEXT = 61
    RELAY_CLOSE = 62
    BROKER_SAMPLE = 63
    TOPIC_STATS = 64
    GROUP_LAGS = 65
