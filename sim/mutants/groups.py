"""Mistakes of the group coordinator."""

import asyncio
from typing import Any

from moldau.coordination.coordinator_host import CoordinatorHost
from moldau.coordination.group_service import GroupService
from moldau.groups import offsets
from moldau.groups.consumer import heartbeat
from moldau.groups.consumer.reconcile import next_step
from moldau.groups.coordinator import GroupCoordinator
from moldau.groups.group import Group
from moldau.groups.offsets import CommitOffsetsWrite
from moldau.groups.results import FetchOffsetsResult
from moldau.model.errors import ErrorCode
from moldau.model.ids import Offset
from sim.mutants import Mutant, Patch, mutant
from sim.plan import GroupPlan

CLASSIC = [GroupPlan(["classic"], 3, False), GroupPlan(["classic"], 3, True)]
CONSUMER = [GroupPlan(["consumer"], 3, False), GroupPlan(["classic", "consumer"], 4, True)]
LEADERS = {"kill": 4.0, "pause": 4.0, "isolate": 6.0}


def _any_member(self: Any, now: float, group: Group, event: Any) -> ErrorCode:
    return ErrorCode.NONE


def _answer_early(self: CommitOffsetsWrite, now: float) -> list[Any]:
    records = _decide(self, now)
    if records:
        self._offsets.reply_to_commit(self._event, ErrorCode.NONE)
    return records


_decide = CommitOffsetsWrite.decide


async def _fetch_known(self: GroupService, *args: Any, **named: Any) -> FetchOffsetsResult:
    return self.known_offsets(*args, **named)


def _fetch_while_loading(self: GroupCoordinator, *args: Any, **named: Any) -> FetchOffsetsResult:
    self._unavailable, before = ErrorCode.NONE, self._unavailable
    try:
        return _fetch_offsets(self, *args, **named)
    finally:
        self._unavailable = before


_fetch_offsets = GroupCoordinator.fetch_offsets


async def _load_slowly(self: CoordinatorHost[Any, Any, Any], offset: Offset) -> None:
    await asyncio.sleep(0.4)
    await _committed(self, offset)


_committed = CoordinatorHost._committed


def _give_at_once(current: Any, **named: Any) -> Any:
    return next_step(current, **{**named, "is_free": lambda topic, index: True})


def _mutant(
    name: str,
    about: str,
    groups: list[GroupPlan],
    *patches: Patch,
    faults: dict[str, float] = LEADERS,
    **plan: Any,
) -> Mutant:
    return mutant(name, "groups", about, faults, *patches, groups=groups, partitions=3, **plan)


MUTANTS = (
    _mutant(
        "AnyMemberCommits",
        "A member that was fenced may commit.",
        CLASSIC + CONSUMER,
        (offsets.GroupOffsets, "commit_error", _any_member),
    ),
    _mutant(
        "AnswersCommitsEarly",
        "A commit is answered before it is stored.",
        CLASSIC,
        (CommitOffsetsWrite, "decide", _answer_early),
        (CommitOffsetsWrite, "committed", lambda self, now: None),
        (CommitOffsetsWrite, "failed", lambda self, now, error: None),
    ),
    _mutant(
        "ReturnsStaleOffsets",
        "A coordinator returns offsets without asking whether it still is one.",
        CLASSIC + CONSUMER,
        (GroupService, "fetch_offsets", _fetch_known),
        faults={"forsake": 4.0},
    ),
    _mutant(
        "ReturnsWhileLoading",
        "A coordinator returns offsets before it has read them.",
        CLASSIC + CONSUMER,
        (GroupCoordinator, "fetch_offsets", _fetch_while_loading),
        (GroupService, "fetch_offsets", _fetch_known),
        # Groups are small here, and read before anybody asks: as if there were many of them.
        (CoordinatorHost, "_committed", _load_slowly),
    ),
    _mutant(
        "GivesAtOnce",
        "A partition is given on before its owner has let go of it.",
        CONSUMER,
        (heartbeat, "next_step", _give_at_once),
    ),
)
