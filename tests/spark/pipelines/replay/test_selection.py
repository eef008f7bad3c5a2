"""Which records a replay means, and what it holds on to."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.spark.lake.storage import folder_at
from moldau.spark.pipelines.replay.selection import (
    ReplayState,
    Span,
    check_same,
    load,
    save,
    selection_of,
)
from moldau.spark.pipelines.settings.replay import ReplaySettings
from moldau.spark.source.planning import OffsetRange

NOW_MS = 1_800_000_000_000


def asked(**values: Any) -> ReplaySettings:
    given = {"topics": ("orders",), **values}
    return ReplaySettings(name="r", bootstrap="b:1", home="/nowhere", target="again", **given)


def test_times_are_read_as_iso_as_milliseconds_and_as_ago() -> None:
    found = selection_of(
        asked(from_time="2027-01-15T08:00:00+00:00", to_time="-10m"), now_ms=NOW_MS + 700_000
    )
    assert (found.from_ms, found.to_ms) == (NOW_MS, NOW_MS + 100_000)
    assert (
        selection_of(asked(from_time="1700000000000"), now_ms=NOW_MS).from_ms == 1_700_000_000_000
    )
    # Who goes on has the moments of then, whatever the hour is now.
    late = asked(from_time="2027-01-15T08:00:00+00:00", to_time="-10m")
    found = selection_of(late, now_ms=0, times=(NOW_MS, NOW_MS + 1))
    assert (found.from_ms, found.to_ms) == (NOW_MS, NOW_MS + 1)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"from_time": "yesterday"}, "--from-time 'yesterday' is not a valid timestamp"),
        ({"from_time": "-1h", "to_time": "-2h"}, "must be before --to-time"),
        ({"from_time": "-1h", "to_time": "-1h"}, "must be before --to-time"),
        ({"offsets": ("0:5",)}, "--offsets must be PARTITION:FIRST-LAST"),
        ({"offsets": ("0:5-4",)}, "is empty"),
        ({"offsets": ("0:1-2", "0:5-6")}, "names partition 0 twice"),
        ({"offsets": ("bills/0:1-2",)}, "names bills, which is not replayed"),
        ({"key_file": "/nowhere/keys"}, "cannot read --key-file /nowhere/keys"),
    ],
)
def test_what_cannot_be_right_names_the_option_to_change(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        selection_of(asked(**values), now_ms=NOW_MS)


def test_offsets_include_both_ends_and_may_lack_one() -> None:
    found = selection_of(asked(offsets=("0:100-199", "1:7-", "orders/2:-9")), now_ms=NOW_MS)
    assert found.span("orders", 0) == Span(100, 200)
    assert found.span("orders", 1) == Span(7, None)
    assert found.span("orders", 2) == Span(None, 10)
    # Only partitions that are named are meant.
    assert found.span("orders", 3) is None
    assert selection_of(asked(), now_ms=NOW_MS).span("orders", 3) == Span(None, None)


def test_keys_come_from_the_command_line_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"one\n\ntwo\r\nb\xff\xfe\n")
    found = selection_of(asked(keys=("three",), key_file=str(file)), now_ms=NOW_MS)
    assert found.keys == frozenset({b"one", b"two", b"b\xff\xfe", b"three"})


def test_an_empty_file_of_keys_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\n\n")
    with pytest.raises(InvalidArgumentError, match="is empty"):
        selection_of(asked(key_file=str(file)), now_ms=NOW_MS)


def test_a_digest_distinguishes_other_keys(tmp_path: Path) -> None:
    one = selection_of(asked(keys=("a", "b")), now_ms=NOW_MS).keys_digest()
    assert one == selection_of(asked(keys=("b", "a")), now_ms=NOW_MS).keys_digest()
    assert one != selection_of(asked(keys=("ab",)), now_ms=NOW_MS).keys_digest()
    assert selection_of(asked(), now_ms=NOW_MS).keys_digest() is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"table": "/lake/orders"}, "either topics or a table"),
        ({"topics": ()}, "either topics or a table"),
        ({"batch_rows": 0}, "--batch-rows must be at least 1"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        asked(**values).check()


RANGES = (
    OffsetRange(topic="orders", partition=0, start=10, end=1010, topic_id=7),
    OffsetRange(topic="orders", partition=1, start=0, end=100, topic_id=7),
    OffsetRange(topic="bills", partition=0, start=5, end=6, topic_id=8),
)
PINNED = ReplayState(
    id="replay-1",
    asked={"name": "r", "target": "again", "topics": ["orders", "bills"]},
    keys_digest="abc",
    from_ms=1,
    to_ms=None,
    target_id=9,
    target_partitions=3,
    keep_partitions=True,
    ranges=RANGES,
    batch_rows=100,
)


def test_batches_hold_every_offset_once_and_in_order() -> None:
    batches = list(PINNED.batches())
    assert all(sum(planned.size for planned in batch) <= 100 for batch in batches)
    assert all(planned.size for batch in batches for planned in batch)
    for whole in RANGES:
        at = whole.start
        for batch in batches:
            for part in batch:
                if (part.topic, part.partition) == (whole.topic, whole.partition):
                    assert (part.start, part.topic_id) == (at, whole.topic_id)
                    at = part.end
        assert at == whole.end
    # Whoever goes on cuts them just the same.
    assert batches == list(PINNED.batches())


def test_nothing_to_send_makes_no_batches() -> None:
    assert list(replace(PINNED, ranges=()).batches()) == []


def test_what_was_pinned_comes_back(tmp_path: Path) -> None:
    folder = folder_at(str(tmp_path / "home" / "checkpoint"), {})
    assert load(folder) is None
    save(folder, PINNED)
    assert load(folder) == PINNED
    save(folder, replace(PINNED, done=3, rows=280))
    assert load(folder) == replace(PINNED, done=3, rows=280)


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    folder = folder_at(str(tmp_path), {})
    save(folder, PINNED)
    folder.write("replay.json", b"{}")
    with pytest.raises(ClientError, match="is corrupt"):
        load(folder)


def test_a_replay_goes_on_as_it_was_begun_or_not_at_all() -> None:
    check_same(PINNED, dict(PINNED.asked), "abc")
    with pytest.raises(InvalidArgumentError, match="target was 'again', is 'other'"):
        check_same(PINNED, {**PINNED.asked, "target": "other"}, "abc")
    with pytest.raises(InvalidArgumentError, match="key_file"):
        check_same(PINNED, dict(PINNED.asked), "other")


def test_settings_of_spark_may_change_and_their_secrets_are_not_remembered() -> None:
    settings = ReplaySettings(name="n", bootstrap="b:1", home="/h", target="t", topics=("s",))
    more = replace(settings, conf={"spark.my.secret": "hunter2"}, master="local[1]")
    assert more.fixed_settings() == settings.fixed_settings()
