"""Owns the plan of a replay: which offsets go where, pinned before the first record is sent."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.client.errors import ClientError, InvalidArgumentError, NotFoundError
from moldau.spark.pipelines.replay.pinned import Pinned, check_same, load, save
from moldau.spark.pipelines.replay.selection import Selection, selection_of
from moldau.spark.pipelines.replay.settings import ReplaySettings
from moldau.spark.pipelines.replay.topics import Brokers, check_fits
from moldau.spark.pipelines.spec import Plan, Step
from moldau.spark.source.cluster import TopicView
from moldau.spark.source.planning import OffsetRange

if TYPE_CHECKING:
    from moldau.spark.pipelines.replay.lake import LakeSource

_LISTED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is selected, by whom it was asked, and what is there of it."""

    settings: ReplaySettings
    selection: Selection
    ranges: tuple[OffsetRange, ...]
    target: TopicView | None
    keep_partitions: bool
    rows: int | None
    """How many are selected, where that is known without reading them."""
    partitions_created: int
    """So many has the target, if it has to be made."""


def prepare(settings: ReplaySettings, lake: "LakeSource | None") -> Prepared:
    """Look at source and target as they are now. Changes nothing."""
    settings.check()
    selection = selection_of(settings, now_ms=time.time_ns() // 1_000_000)
    brokers = Brokers(settings)
    brokers.check_reachable()
    rows: int | None = None
    if lake is None:
        ranges, created = brokers.source_ranges(selection)
        if selection.keys is None and selection.from_ms is None and selection.to_ms is None:
            rows = sum(planned.size for planned in ranges)
    else:
        ranges, rows = lake.ranges(selection)
        created = max((planned.partition + 1 for planned in ranges), default=1)
    needed = max((planned.partition + 1 for planned in ranges), default=1)
    target = brokers.target()
    if target is None and not settings.create:
        raise NotFoundError(
            f"there is no topic {settings.target} to write to",
            hint=f"--create makes it with {created} partitions, or: "
            f"moldau topic create {settings.target}",
        )
    has = created if target is None else len(target.partitions)
    return Prepared(
        settings=settings,
        selection=selection,
        ranges=tuple(ranges),
        target=target,
        keep_partitions=check_fits(settings, needed, has),
        rows=rows,
        partitions_created=created,
    )


def pin(settings: ReplaySettings, lake: "LakeSource | None") -> tuple[Pinned, Selection, bool]:
    """What was begun under this name, or else what is there now, written down.

    Says as the last whether it was begun before.
    """
    settings.check()
    found = load(settings.checkpoint)
    if found is not None:
        selection = selection_of(settings, now_ms=0)
        check_same(found, settings.asked(), selection.keys_digest())
        kept = Selection(
            from_ms=found.from_ms, to_ms=found.to_ms, spans=selection.spans, keys=selection.keys
        )
        return found, kept, True
    prepared = prepare(settings, lake)
    target = prepared.target or Brokers(settings).create_target(prepared.partitions_created)
    selection = prepared.selection
    pinned = Pinned(
        id=Pinned.new_id(),
        asked=settings.asked(),
        keys_digest=selection.keys_digest(),
        from_ms=selection.from_ms,
        to_ms=selection.to_ms,
        target_id=target.id,
        target_partitions=len(target.partitions),
        keep_partitions=prepared.keep_partitions,
        ranges=prepared.ranges,
        batch_rows=settings.batch_rows,
    )
    save(settings.checkpoint, pinned)
    return pinned, selection, False


def check_still_there(settings: ReplaySettings, pinned: Pinned) -> None:
    """Source and target of a replay that goes on are those with which it began."""
    brokers = Brokers(settings)
    target = brokers.target()
    if target is None or target.id != pinned.target_id:
        raise InvalidArgumentError(
            f"{settings.target} was deleted{'' if target is None else ' and made again'} since "
            "this replay began: what it had sent is gone",
            hint="use another --name to send all of it",
        )
    if pinned.keep_partitions is False and len(target.partitions) != pinned.target_partitions:
        raise InvalidArgumentError(
            f"{settings.target} had {pinned.target_partitions} partitions when this replay began, "
            f"and has {len(target.partitions)} now: keys would change their partition, and their "
            "order would be lost",
            hint="use another --name, and another target",
        )
    if not settings.topics:
        return
    planned = {each.topic: each.topic_id for each in pinned.ranges}
    now = brokers.source_ids(tuple(planned)) if planned else {}
    for topic, known in planned.items():
        if now[topic] != known:
            raise ClientError(
                f"{topic} was deleted and made again since this replay began: what was left to "
                "send of it is gone",
                hint="use another --name to replay what it holds now",
            )


def plan_of(settings: ReplaySettings) -> Plan:
    """In words."""
    settings.check()
    lake = lake_of(settings)
    begun = load(settings.checkpoint)
    if begun is not None:
        selection = selection_of(settings, now_ms=0)
        check_same(begun, settings.asked(), selection.keys_digest())
        return _plan_to_go_on(settings, begun)
    prepared = prepare(settings, lake)
    steps: list[Step] = []
    if prepared.target is None:
        count = prepared.partitions_created
        what = f"create topic {settings.target} with {count} partitions, without retention"
        steps.append(Step(what=what))
    steps += _reading(prepared.ranges)
    steps.append(Step(what=_sending(prepared), rows=prepared.rows))
    warnings = [] if prepared.ranges else ["nothing is there to be sent"]
    if settings.target in settings.topics:
        warnings.append(f"{settings.target} is source and target: its records will be there twice")
    if prepared.target is not None and (kept_ms := Brokers(settings).target_retention_ms()):
        warnings.append(
            f"records keep their timestamps: {settings.target} removes those that are older than "
            f"{kept_ms / 86_400_000:g} days (retention.ms)"
        )
    if not prepared.keep_partitions:
        warnings.append(
            "partitions do not keep their numbers: the order of a key is kept, that of a "
            "partition is not"
        )
    return Plan(
        reads=_sources(settings),
        writes=(f"topic {settings.target}",),
        steps=tuple(steps),
        warnings=tuple(warnings),
    )


def _plan_to_go_on(settings: ReplaySettings, begun: Pinned) -> Plan:
    batches = list(begun.batches())
    left = [planned for batch in batches[begun.done :] for planned in batch]
    rows = sum(planned.size for planned in left)
    steps = [
        Step(what=f"{begun.done} of {len(batches)} batches are sent", rows=begun.rows),
        Step(what=f"send what is left in {len(batches) - begun.done} batches", rows=rows),
    ]
    return Plan(
        reads=_sources(settings),
        writes=(f"topic {settings.target}",),
        steps=tuple(steps),
        warnings=() if left else ("all of it was sent before: use another --name to send again",),
    )


def _sources(settings: ReplaySettings) -> tuple[str, ...]:
    if settings.table is not None:
        return (f"table {settings.table}",)
    return tuple(f"topic {topic}" for topic in settings.topics)


def _reading(ranges: Sequence[OffsetRange]) -> list[Step]:
    steps = [Step(what=f"read {planned}", rows=planned.size) for planned in ranges[:_LISTED_MAX]]
    rest = ranges[_LISTED_MAX:]
    if rest:
        rows = sum(planned.size for planned in rest)
        steps.append(Step(what=f"read {len(rest)} partitions more", rows=rows))
    return steps


def _sending(prepared: Prepared) -> str:
    selection = prepared.selection
    which = ["all of them"]
    if selection.keys is not None:
        which = [f"those with one of {len(selection.keys)} keys"]
    if selection.from_ms is not None or selection.to_ms is not None:
        which.append("those in time")
    where = "the same partitions" if prepared.keep_partitions else "partitions by key"
    return f"send {', of '.join(which)}, to {where} of {prepared.settings.target}"


def lake_of(settings: ReplaySettings) -> "LakeSource | None":
    if settings.table is None:
        return None
    from moldau.spark.pipelines.replay.lake import LakeSource

    return LakeSource(settings)
