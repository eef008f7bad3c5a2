"""What a replay holds on to."""

from dataclasses import replace
from pathlib import Path

import pytest

from moldau.client.errors import ClientError, InvalidArgumentError
from moldau.spark.lake.storage import folder_at
from moldau.spark.pipelines.replay.pinned import Pinned, check_same, load, save
from moldau.spark.pipelines.replay.settings import ReplaySettings
from moldau.spark.source.planning import OffsetRange

RANGES = (
    OffsetRange(topic="orders", partition=0, start=10, end=1010, topic_id=7),
    OffsetRange(topic="orders", partition=1, start=0, end=100, topic_id=7),
    OffsetRange(topic="bills", partition=0, start=5, end=6, topic_id=8),
)
PINNED = Pinned(
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


def test_a_damaged_file_is_told_of(tmp_path: Path) -> None:
    folder = folder_at(str(tmp_path), {})
    save(folder, PINNED)
    folder.write("replay.json", b"{}")
    with pytest.raises(ClientError, match="is damaged"):
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
    assert more.asked() == settings.asked()
