"""The lag of groups: of all that a broker coordinates, of some, and of single positions."""

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from handler_calls import LoopClock

from harness.virtual_loop import run_virtually
from moldau.api.cluster_queries import PartitionExtent
from moldau.api.overview.group_lags import LAGGING_MAX, GroupLag, GroupLags
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId, PartitionIndex, TopicPartition
from moldau.net.peers.methods import PeerMethod

ME, OTHER = BrokerId(1), BrokerId(2)


def at(topic: str, index: int = 0) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(index))


class World:
    """Topic "here" is led here, with 20 records that are 5 s old; "there" has no replica. The
    follower of "behind" knows of 3 records, and its leader has 9, as that of "there"."""

    def __init__(self, offsets: dict[str, dict[TopicPartition, int]]) -> None:
        self.offsets = offsets
        self.error = ErrorCode.NONE
        self.errors: dict[str, ErrorCode] = {}
        self.measured: list[str] = []
        self.extent_calls = 0
        self.is_other_silent = False
        self.is_hanging = False
        self.silent: set[str] = set()
        self.clock: Any = LoopClock()
        parts: Any = self
        self.lags = GroupLags(
            me=ME, clock=self.clock, groups=parts, replicas=parts, queries=parts, caller=parts
        )

    def groups_of_each(self) -> Any:
        yield self.error, [SimpleNamespace(group_id=name) for name in self.offsets]

    def known_offsets(self, name: str) -> Any:
        self.measured.append(name)
        stored = {
            partition: SimpleNamespace(offset=offset)
            for partition, offset in self.offsets.get(name, {}).items()
        }
        error = self.errors.get(name, ErrorCode.NONE)
        return SimpleNamespace(error=error, offsets={} if error else stored)

    def get(self, topic: str, index: int) -> Any:
        if topic not in ("here", "behind"):
            return None
        return SimpleNamespace(
            is_leader=topic == "here",
            start_offset=0,
            high_watermark=20 if topic == "here" else 3,
            timestamp_at=lambda _: self.clock.wall_ms() - 5_000,
        )

    def is_leader(self, topic: str, index: int) -> bool:
        return topic == "here"

    async def extents(self, wanted: Any) -> Any:
        self.extent_calls += 1
        if self.is_hanging:
            await asyncio.sleep(3)
            return {}
        led = {"there", "behind"} - self.silent
        return {each: PartitionExtent(0, 9, 1) for each in wanted if each.topic in led}

    async def call(self, peer: int, method: int, payload: bytes, seconds: float) -> bytes:
        assert (peer, method) == (OTHER, PeerMethod.GROUP_LAGS)
        if self.is_other_silent:
            raise RefusedError(ErrorCode.REQUEST_TIMED_OUT, "it took too long")
        names = msgspec.msgpack.decode(payload, type=list[str])
        return msgspec.msgpack.encode([GroupLag(len(name), 1.0) for name in names])


def test_the_total_is_of_all_groups_and_the_list_of_the_worst():
    async def run() -> None:
        count = LAGGING_MAX + 10
        world = World({f"g{n:02}": {at("here"): max(0, 20 - n)} for n in range(count)})
        world.offsets["done"] = {at("here"): 20}
        found = await world.lags.totals()
        assert found.groups == count + 1
        assert found.records == sum(min(n, 20) for n in range(count))
        assert len(found.lagging) == LAGGING_MAX
        assert found.lagging[0].records == 20
        # Ages from before the first look are read from the log, some at a time.
        assert sum(each.seconds is not None for each in found.lagging) < 10
        await asyncio.sleep(5)
        await world.lags.totals()
        await asyncio.sleep(5)
        found = await world.lags.totals()
        assert all(each.seconds is not None for each in found.lagging)

    run_virtually(run())


def test_a_total_is_kept_for_a_while():
    async def run() -> None:
        world = World({"g": {at("here"): 1}})
        await world.lags.totals()
        await world.lags.totals()
        assert world.measured == ["g"]
        await asyncio.sleep(5)
        world.offsets["g"] = {at("here"): 20}
        assert (await world.lags.totals()).records == 0
        assert world.measured == ["g", "g"]

    run_virtually(run())


def test_nothing_is_known_while_the_coordinator_loads():
    async def run() -> None:
        world = World({"g": {at("here"): 1}})
        world.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        found = await world.lags.totals()
        assert (found.groups, found.records, found.lagging) == (None, None, ())

    run_virtually(run())


def test_a_group_that_cannot_be_read_has_no_lag_instead_of_none():
    """Just after another broker became its coordinator."""

    async def run() -> None:
        world = World({"g": {at("here"): 1}, "h": {at("here"): 1}})
        for world.errors["g"] in (
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ):
            unknown, known = await world.lags.here(["g", "h"])
            assert unknown == GroupLag(None, None)
            assert known.records == 19
            assert await world.lags.positions("g") == {}
        found = await world.lags.totals()
        assert (found.records, [one.group for one in found.lagging]) == (19, ["h"])

    run_virtually(run())


def test_an_error_is_logged_and_the_last_total_stays(caplog):
    async def run() -> None:
        world = World({"g": {at("here"): 1}})
        assert (await world.lags.totals()).records == 19
        await asyncio.sleep(5)
        world.groups_of_each = lambda: 1 / 0  # type: ignore[method-assign]
        assert (await world.lags.totals()).records == 19

    run_virtually(run())
    assert "the lag of groups is missing" in caplog.text


def test_leaders_on_other_brokers_are_asked_when_a_person_looks():
    async def run() -> None:
        world = World({"g": {at("here"): 18, at("there"): 4}, "h": {at("nowhere"): 1}, "none": {}})
        both, unknown, none = await world.lags.here(["g", "h", "none"])
        assert both.records == 2 + 5
        assert both.seconds == pytest.approx(5)
        assert unknown == GroupLag(None, None)
        assert none == GroupLag(0, 0.0)
        assert world.extent_calls == 1

    run_virtually(run())


def test_a_follower_that_is_behind_does_not_say_how_far_a_group_is():
    async def run() -> None:
        world = World({"g": {at("behind"): 3}})
        (seen,) = await world.lags.here(["g"])
        assert seen.records == 6
        assert (await world.lags.positions("g"))[at("behind")].mark == 9
        # The scan of all groups agrees, and forgets no history.
        assert (await world.lags.totals()).records == 6
        world.silent = {"behind"}
        assert await world.lags.here(["g"]) == [GroupLag(None, None)]

    run_virtually(run())


def test_until_a_leader_was_asked_its_follower_has_to_do():
    async def run() -> None:
        world = World({"g": {at("behind"): 1}})
        assert (await world.lags.totals()).records == 2
        await asyncio.sleep(5)
        assert (await world.lags.totals()).records == 8

    run_virtually(run())


def test_a_leader_that_hangs_holds_up_no_other_request():
    async def run() -> None:
        world = World({"g": {at("there"): 1}, "h": {at("here"): 1}})
        world.is_hanging = True
        began = world.clock.monotonic()
        waiting = [asyncio.ensure_future(world.lags.here(["g"])) for _ in range(8)]
        await asyncio.sleep(0.1)
        assert (await world.lags.totals()).records == 19
        # Somebody else may wait for it, too, but not everybody.
        for asked in (
            world.lags.here(["h"]),
            world.lags.positions("h"),
            world.lags.of_topic("here", {"h": [(0, 1)]}),
        ):
            with pytest.raises(RefusedError, match="retry") as caught:
                await asked
            assert caught.value.code.is_unavailable
        assert await world.lags.by_coordinator([("h", ME)]) == {}
        assert await asyncio.gather(*waiting) == [[GroupLag(None, None)]] * 8
        # All at once, and not one after the other.
        assert world.clock.monotonic() - began < 4
        (seen,) = await world.lags.here(["h"])
        assert seen.records == 19

    run_virtually(run())


def test_each_position_has_its_own_lag():
    async def run() -> None:
        world = World({"g": {at("here"): 18, at("here", 1): 20, at("nowhere"): 1}})
        found = await world.lags.positions("g")
        assert found[at("here")].mark == 20
        assert found[at("here")].seconds == pytest.approx(5)
        assert found[at("here", 1)] == (20, 0.0)
        assert found[at("nowhere")] == (None, None)

    run_virtually(run())


def test_each_coordinator_is_asked_for_its_groups():
    async def run() -> None:
        world = World({"mine": {at("here"): 19}})
        groups = [("mine", ME), ("theirs", OTHER)]
        found = await world.lags.by_coordinator(groups)
        assert {name: lag.records for name, lag in found.items()} == {"mine": 1, "theirs": 6}
        world.is_other_silent = True
        assert set(await world.lags.by_coordinator(groups)) == {"mine"}

    run_virtually(run())


def test_a_peer_gets_what_it_asks_for():
    async def run() -> None:
        world = World({"g": {at("here"): 19}})
        reply = await world.lags.on_request(OTHER, msgspec.msgpack.encode(["g"]))
        (found,) = msgspec.msgpack.decode(reply, type=list[GroupLag])
        assert found.records == 1
        with pytest.raises(RefusedError):
            await world.lags.on_request(OTHER, b"\xc1")

    run_virtually(run())
