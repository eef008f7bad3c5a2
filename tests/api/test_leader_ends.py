"""Whose leaders are asked, if there are more partitions than may be asked for."""

import asyncio
from collections.abc import Iterable, Mapping

import pytest

from harness.virtual_loop import run_virtually
from moldau.api import leader_ends
from moldau.api.cluster_queries import PartitionExtent
from moldau.api.leader_ends import LeaderEnds
from moldau.model.ids import PartitionIndex, TopicPartition


def at(index: int) -> TopicPartition:
    return TopicPartition("t", PartitionIndex(index))


def test_those_without_a_follower_are_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_ends, "REMOTE_PARTITIONS_MAX", 3)
    asked: list[set[TopicPartition]] = []

    async def extents(
        wanted: Iterable[TopicPartition],
    ) -> Mapping[TopicPartition, PartitionExtent]:
        asked.append(set(wanted))
        return {each: PartitionExtent(0, 7, 1) for each in asked[-1]}

    async def run() -> None:
        ends = LeaderEnds()
        for index in range(5):
            ends.of(at(index), has_follower=True)
        for index in (8, 9):
            ends.of(at(index))
        ends.ask(extents)
        await asyncio.sleep(0)
        assert len(asked[0]) == 3
        assert asked[0] >= {at(8), at(9)}
        assert ends.of(at(8)) == PartitionExtent(0, 7, 1)
        ends.ask(extents)
        await asyncio.sleep(0)
        assert asked[1] == {at(8)}

    run_virtually(run())


def test_what_was_learnt_from_others_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_ends, "REMOTE_PARTITIONS_MAX", 2)
    ends = LeaderEnds({at(0): PartitionExtent(0, 1, 1)})
    for index in range(1, 4):
        ends.learn({at(index): PartitionExtent(0, 5, 1)})
    assert ends.of(at(0)) is not None
    ends.learn({at(4): PartitionExtent(0, 5, 1)})
    assert ends.of(at(0)) is None
    assert ends.of(at(4)) is not None
