"""Responsible for the course of a replay: what it would send, and batch after batch, each once."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.client.errors import InvalidArgumentError, NotFoundError, RejectedError
from moldau.client.kafka.admin import Admin
from moldau.model.errors import ErrorCode
from moldau.spark.option_table import Side
from moldau.spark.pipelines.replay import selection as chosen
from moldau.spark.pipelines.replay import sources
from moldau.spark.pipelines.replay.selection import ReplaySettings, ReplayState, Selection
from moldau.spark.pipelines.rows import IDENTITY
from moldau.spark.pipelines.spec import (
    Outcome,
    PipelineContext,
    PipelineSettings,
    Plan,
    Progress,
    Step,
)
from moldau.spark.schema import HEADERS_COLUMN
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.source_client import TopicView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

Source = sources.TopicSource | sources.TableSource
_LISTED_MAX: Final = 20
_DAY_MS: Final = 86_400_000


def plan(settings: PipelineSettings) -> Plan:
    """What would be sent. Asks brokers and the table; changes nothing."""
    told = _checked(settings)
    source = sources.source_of(told)
    begun, selection = _begun(told)
    if begun is None:
        steps, warnings = _first_steps(told, source, selection)
    else:
        batches = list(begun.batches())
        left = sum(planned.size for batch in batches[begun.done :] for planned in batch)
        what = f"send what is left: {begun.done} of {len(batches)} batches are sent"
        steps = [Step(what=what, rows=left)]
        warnings = [] if left else ["all of it was sent before: use another --name to send again"]
    reads = tuple(f"topic {topic}" for topic in told.topics) or (f"table {told.table}",)
    writes = (f"topic {told.target}",)
    return Plan(reads=reads, writes=writes, steps=tuple(steps), warnings=tuple(warnings))


def _first_steps(
    settings: ReplaySettings, source: Source, selection: Selection
) -> tuple[list[Step], list[str]]:
    name, target = settings.target, _target(settings)
    steps, warnings, rows = [], [], None
    keep = settings.keep_partitions is not False
    if target is None:
        what = f"create topic {name}: as many partitions as the source, no retention"
        steps.append(Step(what=what))
    elif kept_ms := _retention_ms(settings):
        warnings.append(
            f"records keep their timestamps: {name} removes those that are older than "
            f"{kept_ms / _DAY_MS:g} days (retention.ms)"
        )
    if isinstance(source, sources.TableSource):
        # Which offsets it holds is for Spark to find.
        snapshot = source.snapshot()
        what = f"read {len(snapshot.files)} files of version {snapshot.version}"
        size = sum(file.bytes for file in snapshot.files)
        steps.append(Step(what=what, rows=snapshot.rows, bytes=size))
    else:
        ranges, _ = source.ranges(selection, None)
        keep = keep if target is None else _keeps_partitions(settings, ranges, target)
        steps += [Step(what=f"read {each}", rows=each.size) for each in ranges[:_LISTED_MAX]]
        if rest := ranges[_LISTED_MAX:]:
            size = sum(each.size for each in rest)
            steps.append(Step(what=f"read {len(rest)} partitions more", rows=size))
        if selection == Selection(spans=selection.spans):
            rows = sum(each.size for each in ranges)
        if not ranges:
            warnings.append("nothing is there to be sent")
    steps.append(Step(what=f"send what is selected of them to {name}", rows=rows))
    if name in settings.topics:
        warnings.append(f"{name} is source and target: its records will be there twice")
    if not keep:
        warnings.append(
            "partitions do not keep their numbers: the order of a key is kept, that of a "
            "partition is not"
        )
    return steps, warnings


def run(settings: PipelineSettings, context: PipelineContext) -> Outcome:
    """Until all is sent, or until told to stop. What was sent before is not sent again."""
    told = _checked(settings)
    source = sources.source_of(told)
    begun, selection = _begun(told)
    pinned = begun or _pin(told, source, selection, context)
    batches = list(pinned.batches())
    before = pinned.done
    sizes = [sum(planned.size for planned in batch) for batch in batches]
    total, passed_before = sum(sizes), sum(sizes[:before])
    started = time.monotonic()
    for number in range(before, len(batches)):
        if context.stopping:
            break
        _check_still_there(told, pinned)
        began = time.monotonic()
        rows = source.rows(context.spark, batches[number], selection)
        counted = _send(rows, pinned, number, told)
        # The run before may have died with its batch written and this not noted. Such a batch was
        # not read to its end just now, and nobody counted it.
        is_unsure = begun is not None and number == before
        sent = rows.count() if is_unsure else int(counted.get["rows"])
        pinned = replace(pinned, done=number + 1, rows=pinned.rows + sent)
        chosen.save(told.checkpoint, pinned)
        passed = sum(sizes[: number + 1])
        context.report(
            Progress(
                batch=number,
                rows=passed,
                rows_total=total,
                rows_per_second=(passed - passed_before) / max(time.monotonic() - started, 1e-9),
                lag=total - passed,
                batch_seconds=time.monotonic() - began,
                note=f"{pinned.rows} sent",
            )
        )
    return _outcome(pinned, len(batches), before)


def _outcome(pinned: ReplayState, batches: int, before: int) -> Outcome:
    target = pinned.asked["target"]
    if not batches:
        summary = f"nothing was there to be sent to {target}"
    elif before >= batches:
        summary = f"all {pinned.rows} rows were sent to {target} before"
    elif pinned.done < batches:
        summary = (
            f"stopped after {pinned.done} of {batches} batches, {pinned.rows} rows sent to "
            f"{target}; run it again to go on"
        )
    else:
        summary = f"{pinned.rows} rows sent to {target}"
    done = {"batches_done": pinned.done, "batches_done_before": before}
    details = {"target": target, "rows": pinned.rows, "batches": batches, **done}
    return Outcome(summary=summary, rows=pinned.rows, details=details)


def _checked(settings: PipelineSettings) -> ReplaySettings:
    if not isinstance(settings, ReplaySettings):
        raise TypeError(f"settings of kind {settings.kind!r} are none of a replay")
    settings.check()
    return settings


def _begun(settings: ReplaySettings) -> tuple[ReplayState | None, Selection]:
    """What was begun under this name, if it was; and what is selected, by the times of then."""
    begun = chosen.load(settings.checkpoint)
    times = None if begun is None else (begun.from_ms, begun.to_ms)
    selection = chosen.selection_of(settings, now_ms=time.time_ns() // 1_000_000, times=times)
    if begun is not None:
        chosen.check_same(begun, settings.asked(), selection.keys_digest())
    return begun, selection


def _pin(
    settings: ReplaySettings, source: Source, selection: Selection, context: PipelineContext
) -> ReplayState:
    """What is there now, written down before the first record is sent."""
    target = _target(settings)
    ranges, created = source.ranges(selection, context)
    target = target or _create_target(settings, created)
    pinned = ReplayState(
        asked=settings.asked(),
        keys_digest=selection.keys_digest(),
        from_ms=selection.from_ms,
        to_ms=selection.to_ms,
        target_id=target.id,
        target_partitions=len(target.partitions),
        keep_partitions=_keeps_partitions(settings, ranges, target),
        ranges=tuple(ranges),
        batch_rows=settings.batch_rows,
    )
    chosen.save(settings.checkpoint, pinned)
    return pinned


def _check_still_there(settings: ReplaySettings, pinned: ReplayState) -> None:
    """Source and target of a replay that goes on are those with which it began."""
    ids = {settings.target: pinned.target_id}
    if settings.topics:
        ids |= {each.topic: each.topic_id for each in pinned.ranges}
    with sources.cluster_of(settings, tuple(ids)) as cluster:
        found = cluster.topics(missing_is_fine=True)
    for topic, known in ids.items():
        if topic not in found or found[topic].id != known:
            lost = "it had sent" if topic == settings.target else "was left to send of it"
            raise InvalidArgumentError(
                f"{topic} was deleted{' and made again' if topic in found else ''} since this "
                f"replay began: what {lost} is gone",
                hint="use another --name for another replay",
            )
    has = len(found[settings.target].partitions)
    if not pinned.keep_partitions and has != pinned.target_partitions:
        raise InvalidArgumentError(
            f"{settings.target} had {pinned.target_partitions} partitions when this replay began, "
            f"and has {has} now: keys would change their partition, and their order would be lost",
            hint="use another --name, and another target",
        )


# -- the target


def _target(settings: ReplaySettings) -> TopicView | None:
    """As it is now; None if it has to be made."""
    with sources.cluster_of(settings, (settings.target,)) as cluster:
        # Who waits for brokers to come back should know that one was there: else say so at once.
        cluster.client.any_broker()
        found = cluster.topics(missing_is_fine=True).get(settings.target)
    if found is None and not settings.create:
        raise NotFoundError(
            f"there is no topic {settings.target} to write to",
            hint="--create makes it with as many partitions as the source, or: "
            f"moldau topic create {settings.target}",
        )
    return found


def _create_target(settings: ReplaySettings, partitions: int) -> TopicView:
    with sources.cluster_of(settings, (settings.target,)) as cluster:
        try:
            # Records keep their timestamps: by the usual retention, old ones would be removed as
            # soon as they are there.
            cluster.client.create_topic(
                settings.target, partitions=partitions, configs={"retention.ms": "-1"}
            )
        except RejectedError as error:
            # By another run, or by one whose answer was lost.
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        return cluster.topics()[settings.target]


def _keeps_partitions(
    settings: ReplaySettings, ranges: Sequence[OffsetRange], target: TopicView
) -> bool:
    """Raises InvalidArgumentError if they have to keep their numbers and cannot."""
    needed, has = max((each.partition + 1 for each in ranges), default=1), len(target.partitions)
    if settings.keep_partitions and has < needed:
        raise InvalidArgumentError(
            f"{settings.target} has {has} partitions, too few to keep those of the source: it "
            f"takes {needed}",
            hint=f"add some: moldau topic alter {settings.target} --partitions {needed} · or let "
            "keys say the partition: --no-keep-partitions",
        )
    return has >= needed if settings.keep_partitions is None else settings.keep_partitions


def _retention_ms(settings: ReplaySettings) -> int | None:
    """After which the target removes records, by their timestamps; None is never."""
    found = Admin(settings.bootstrap).topic_config(settings.target)
    config = {each.name: each.value or "" for each in found}
    kept = int(config.get("retention.ms") or -1)
    return None if kept < 0 or "delete" not in config.get("cleanup.policy", "") else kept


def _send(
    rows: "DataFrame", pinned: ReplayState, number: int, settings: ReplaySettings
) -> "Observation":
    """Write a batch, unless it was written before; what counts the rows that were."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    partition, headers = F.col("partition"), F.col("headers")
    if not pinned.keep_partitions:
        # The key says it. Rows without one stay with their neighbours, in their order.
        partition = F.when(F.col("key").isNull(), partition % F.lit(pinned.target_partitions))
    if settings.origin_headers:
        none = F.array().cast(HEADERS_COLUMN[1])
        origin = [
            F.struct(
                F.lit(f"moldau-origin-{name}").alias("key"), text.cast("binary").alias("value")
            )
            for name in IDENTITY
            for text in [F.col(name).cast("string")]
        ]
        headers = F.concat(F.coalesce(headers, none), F.array(*origin))
    partition = partition.cast("int").alias("partition")
    counted = Observation()
    (
        rows.select("key", "value", headers.alias("headers"), partition, "timestamp")
        .observe(counted, F.count("*").alias("rows"))
        .write.format("moldau")
        .mode("append")
        .options(**sources.options_for(settings, Side.WRITE))
        .options(topic=settings.target, exactlyOnce="true", writeTimestamp="true")
        .options(txnAppId=pinned.id, txnVersion=str(number))
        .save()
    )
    return counted
