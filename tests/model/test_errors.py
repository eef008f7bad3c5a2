"""Which errors are retriable."""

from kio.schema.errors import ErrorCode as KafkaErrorCode

from moldau.model.errors import ErrorCode


def test_retriable_codes_are_those_of_kafka():
    theirs = {code: KafkaErrorCode(code.value) for code in ErrorCode}
    assert [code.name.lower() for code in ErrorCode] == [code.name for code in theirs.values()]
    assert {code for code in ErrorCode if code.is_retriable} == {
        code for code, known in theirs.items() if known.retriable
    }


def test_unavailable_codes_blame_the_cluster_and_not_the_request():
    assert ErrorCode.NOT_ENOUGH_REPLICAS.is_unavailable
    assert ErrorCode.BROKER_NOT_AVAILABLE.is_unavailable
    assert not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.is_unavailable
    assert not ErrorCode.NONE.is_unavailable
