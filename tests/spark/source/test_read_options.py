"""What a read is asked for: the Kafka connector's options, each refused by name if wrong."""

from typing import Any

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.source.read_options import (
    EARLIEST,
    LATEST,
    ReadOptions,
    parse_read_options,
    wants_headers,
)

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def parse(streaming: bool = False, **given: str) -> ReadOptions:
    names = {name.replace("__", "."): value for name, value in given.items()}
    return parse_read_options({**SERVERS, "subscribe": "a", **names}, streaming=streaming)


def test_a_batch_is_read_from_the_earliest_to_the_latest() -> None:
    found = parse()
    assert (found.start.everywhere, found.end.everywhere) == (EARLIEST, LATEST)
    assert found.subscription.topics == ("a",)
    assert found.fail_on_data_loss
    assert not found.read_committed


def test_a_stream_begins_with_what_comes_next() -> None:
    assert parse(streaming=True).start.everywhere == LATEST


def test_several_topics_are_named_by_commas() -> None:
    assert parse(subscribe="a, b,,a").subscription.topics == ("a", "b")


@pytest.mark.parametrize(
    "given", [{}, {"subscribe": "a", "assign": '{"a":[0]}'}, {"subscribe": " "}, {"subscribe": ","}]
)
def test_exactly_one_option_says_what_is_read(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="subscribe"):
        parse_read_options({**SERVERS, **given}, streaming=False)


def test_partitions_can_be_assigned() -> None:
    found = parse_read_options({**SERVERS, "assign": '{"a":[1,0,1]}'}, streaming=False)
    assert found.subscription.assigned == {"a": (0, 1)}


@pytest.mark.parametrize("text", ["a", "[]", "{}", '{"a": 0}', '{"a": [-1]}', '{"a": [true]}'])
def test_a_wrong_assignment_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="option assign"):
        parse_read_options({**SERVERS, "assign": text}, streaming=False)


def test_a_pattern_must_be_a_regular_expression() -> None:
    with pytest.raises(
        InvalidArgumentError, match="subscribePattern is not a supported regular expression"
    ):
        parse_read_options({**SERVERS, "subscribePattern": "a("}, streaming=False)


def test_offsets_by_partition_are_read() -> None:
    found = parse(startingOffsets='{"a":{"0":23,"1":-2}}')
    assert found.start.named == {("a", 0): 23, ("a", 1): EARLIEST}


@pytest.mark.parametrize(
    "text", ["newest", "5", '{"a": 5}', '{"a": {"x": 5}}', '{"a": {"0": -3}}', '{"a": {"0": "5"}}']
)
def test_wrong_offsets_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(
        InvalidArgumentError, match="option startingOffsets must be earliest, latest, or"
    ):
        parse(startingOffsets=text)


def test_a_batch_cannot_begin_at_its_end() -> None:
    with pytest.raises(InvalidArgumentError, match="startingOffsets cannot be latest"):
        parse(startingOffsets="latest")
    with pytest.raises(InvalidArgumentError, match="endingOffsets cannot be earliest"):
        parse(endingOffsets="earliest")
    with pytest.raises(InvalidArgumentError, match="endingOffsets cannot use -2"):
        parse(endingOffsets='{"a":{"0":-2}}')


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"option {name} is for batch reads"):
        parse(streaming=True, **{name: "5"})


def test_a_time_goes_before_offsets() -> None:
    found = parse(startingTimestamp="5", startingOffsets="earliest")
    assert (found.start.is_time, found.start.everywhere) == (True, 5)
    found = parse(startingOffsetsByTimestamp='{"a":{"0":7}}', startingOffsets="earliest")
    assert (found.start.is_time, found.start.named) == (True, {("a", 0): 7})


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": '{"a":{"0":7}}', "endingOffsets": '{"a":{"0":6}}'},
        {
            "startingOffsetsByTimestamp": '{"a":{"0":7}}',
            "endingOffsetsByTimestamp": '{"a":{"0":6}}',
        },
        {"startingTimestamp": "7", "endingTimestamp": "6"},
    ],
)
def test_an_end_before_the_start_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"option ending\w+ \(6\) is before starting"):
        parse(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": '{"a":{"0":7}}', "endingOffsets": '{"a":{"0":7}}'},
        {"startingOffsets": '{"a":{"0":7}}', "endingOffsets": '{"a":{"0":-1}}'},
        {"startingOffsets": '{"a":{"0":7}}', "endingTimestamp": "6"},
        {"startingTimestamp": "7"},
    ],
)
def test_an_end_that_may_come_later_is_taken(given: dict[str, Any]) -> None:
    parse(**given)


def test_limits_of_streams_are_reported_as_unused_for_a_batch(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.spark.options._warned", set())
    parse(maxOffsetsPerTrigger="5", streaming=True)
    assert not caplog.records
    parse(maxOffsetsPerTrigger="5")
    assert "option maxOffsetsPerTrigger has no effect" in caplog.text


@pytest.mark.parametrize("name", ["isolation", "kafka__isolation__level"])
def test_both_names_of_the_isolation_are_known(name: str) -> None:
    good: Any = {name: "read_committed"}
    assert parse(**good).read_committed
    with pytest.raises(InvalidArgumentError, match="read_committed or read_uncommitted"):
        parse(**(good | {name: "serializable"}))


def test_progress_is_committed_for_a_group_of_ours_and_never_for_that_of_kafkas_consumers() -> None:
    assert parse(groupId="g").group == "g"
    assert parse(kafka__group__id="g").group is None
    assert parse().group is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("500", 0.5), ("5000us", 0.005), ("30s", 30), ("15m", 900), ("1 h", 3600)]
)
def test_times_are_written_as_people_do(text: str, seconds: float) -> None:
    assert parse(maxTriggerDelay=text).trigger_delay_seconds_max == seconds


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="maxTriggerDelay"):
        parse(maxTriggerDelay="soon")


def test_the_least_is_not_above_the_most() -> None:
    with pytest.raises(InvalidArgumentError, match="minOffsetsPerTrigger"):
        parse(streaming=True, minOffsetsPerTrigger="9", maxOffsetsPerTrigger="5")


def test_only_one_option_changes_the_columns() -> None:
    assert not wants_headers({"subscribe": "a"})
    assert wants_headers({"includeheaders": "true"})
