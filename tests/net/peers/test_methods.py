"""Each method between brokers is for operators, or one that the cluster lives on."""

from moldau.net.peers.methods import FOR_OPERATORS, PeerMethod

LIVED_ON = {
    PeerMethod.SUBMIT_COMMAND,
    PeerMethod.ANNOUNCE_LEADERS,
    PeerMethod.TRANSFER_LEADERSHIP,
    PeerMethod.FRESH_METADATA_OFFSET,
    PeerMethod.WRITE_MARKERS,
    PeerMethod.ADMIT_TO_TRANSACTION,
    PeerMethod.REPLICATED_OFFSETS,
    PeerMethod.CAN_LOSE_REPLICA,
    PeerMethod.READ_CLOCK,
    PeerMethod.SURVEY_REPLICAS,
    PeerMethod.MAKE_ONLY_VOTER,
    PeerMethod.APPEND,
    PeerMethod.LEDGER_READ,
    PeerMethod.LEDGER_WRITE,
    PeerMethod.LEDGER_FORGET,
    PeerMethod.QUEUE_HEARTBEAT,
    PeerMethod.QUEUE_MEMBER_LEFT,
    PeerMethod.QUEUE_COMMIT,
    PeerMethod.QUEUE_OFFSETS,
    PeerMethod.QUEUE_DESCRIBE,
}


def test_each_method_is_of_one_kind() -> None:
    assert set(PeerMethod) == LIVED_ON | FOR_OPERATORS
    assert not LIVED_ON & FOR_OPERATORS
