"""The replay pipeline: its plan, and the batches it sends, each exactly once."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moldau.client.errors import InvalidArgumentError, NotFoundError, RejectedError
from moldau.client.kafka.admin import Admin
from moldau.client.librdkafka_security import librdkafka_names
from moldau.model.errors import ErrorCode
from moldau.spark.option_table import Side
from moldau.spark.pipelines.replay import selection as chosen
from moldau.spark.pipelines.replay import sources
from moldau.spark.pipelines.replay.selection import ReplayState, Selection
from moldau.spark.pipelines.rows import IDENTITY
from moldau.spark.pipelines.settings.replay import ReplaySettings
from moldau.spark.pipelines.spec import Outcome, PipelineContext, Plan, Progress, Step
from moldau.spark.schema import HEADERS_COLUMN
from moldau.spark.source.planning import OffsetRange
from moldau.spark.source.source_client import TopicView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

Source = sources.TopicSource | sources.TableSource
_LISTED_MAX: Final = 20
_DAY_MS: Final = 86_400_000


def plan(settings: ReplaySettings) -> Plan:
    """What would be sent. Reads from brokers and the table, changes nothing."""
    settings.check()
    source = sources.source_of(settings)
    state, selection = _load(settings)
    if state is None:
        steps, warnings = _first_steps(settings, source, selection)
    else:
        batches = list(state.batches())
        left = sum(planned.size for batch in batches[state.done :] for planned in batch)
        what = f"send the rest: {state.done} of {len(batches)} batches are sent"
        steps = [Step(what=what, rows=left)]
        warnings = [] if left else ["all rows were already sent: to send again, use another --name"]
    reads = tuple(f"topic {topic}" for topic in settings.topics) or (f"table {settings.table}",)
    writes = (f"topic {settings.target}",)
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
            f"records keep their timestamps: {name} deletes those older than "
            f"{kept_ms / _DAY_MS:g} days (retention.ms)"
        )
    if isinstance(source, sources.TableSource):
        # Only Spark can find the offsets in the table.
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
            steps.append(Step(what=f"read {len(rest)} more partitions", rows=size))
        if selection == Selection(spans=selection.spans):
            rows = sum(each.size for each in ranges)
        if not ranges:
            warnings.append("there are no records to send")
    steps.append(Step(what=f"send the selected records to {name}", rows=rows))
    if name in settings.topics:
        warnings.append(f"{name} is both source and target: its records will be there twice")
    if not keep:
        warnings.append(
            "partition numbers change: the order of records with the same key is kept, but not "
            "that of a partition"
        )
    return steps, warnings


def run(settings: ReplaySettings, context: PipelineContext) -> Outcome:
    """Runs until all records are sent, or until it is stopped. Sends no batch twice."""
    settings.check()
    source = sources.source_of(settings)
    loaded, selection = _load(settings)
    state = loaded or _create_state(settings, source, selection, context)
    batches = list(state.batches())
    before = state.done
    sizes = [sum(planned.size for planned in batch) for batch in batches]
    total, sent_before = sum(sizes), sum(sizes[:before])
    started = time.monotonic()
    for number in range(before, len(batches)):
        if context.stopping:
            break
        _check_topics(settings, state)
        began = time.monotonic()
        rows = source.rows(context.spark, batches[number], selection)
        counted = _send(rows, state, number, settings)
        # The previous run may have died after this batch was written, but before its state was
        # saved. The sink then skipped the batch, and did not count its rows.
        is_unsure = loaded is not None and number == before
        sent = rows.count() if is_unsure else int(counted.get["rows"])
        state = replace(state, done=number + 1, rows=state.rows + sent)
        chosen.save(settings.checkpoint, state)
        done = sum(sizes[: number + 1])
        context.report(
            Progress(
                batch=number,
                rows=done,
                rows_total=total,
                rows_per_second=(done - sent_before) / max(time.monotonic() - started, 1e-9),
                lag=total - done,
                batch_seconds=time.monotonic() - began,
                note=f"{state.rows} sent",
            )
        )
    return _outcome(state, len(batches), before)


def _outcome(state: ReplayState, batches: int, before: int) -> Outcome:
    target = state.asked["target"]
    if not batches:
        summary = f"there were no records to send to {target}"
    elif before >= batches:
        summary = f"all {state.rows} rows were already sent to {target}"
    elif state.done < batches:
        summary = (
            f"stopped after {state.done} of {batches} batches, {state.rows} rows sent to "
            f"{target}; run it again to continue"
        )
    else:
        summary = f"{state.rows} rows sent to {target}"
    done = {"batches_done": state.done, "batches_done_before": before}
    details = {"target": target, "rows": state.rows, "batches": batches, **done}
    return Outcome(summary=summary, rows=state.rows, details=details)


def _load(settings: ReplaySettings) -> tuple[ReplayState | None, Selection]:
    """The state of an earlier run, if there is one; and the selection, with its timestamps."""
    state = chosen.load(settings.checkpoint)
    times = None if state is None else (state.from_ms, state.to_ms)
    selection = chosen.selection_of(settings, now_ms=time.time_ns() // 1_000_000, times=times)
    if state is not None:
        chosen.check_same(state, settings.fixed_settings(), selection.keys_digest())
    return state, selection


def _create_state(
    settings: ReplaySettings, source: Source, selection: Selection, context: PipelineContext
) -> ReplayState:
    """The current offset ranges, saved before the first record is sent."""
    target = _target(settings)
    ranges, created = source.ranges(selection, context)
    target = target or _create_target(settings, created)
    state = ReplayState(
        asked=settings.fixed_settings(),
        keys_digest=selection.keys_digest(),
        from_ms=selection.from_ms,
        to_ms=selection.to_ms,
        target_id=target.id,
        target_partitions=len(target.partitions),
        keep_partitions=_keeps_partitions(settings, ranges, target),
        ranges=tuple(ranges),
        batch_rows=settings.batch_rows,
    )
    chosen.save(settings.checkpoint, state)
    return state


def _check_topics(settings: ReplaySettings, state: ReplayState) -> None:
    """Rejects a source or target that was deleted or changed since the replay started."""
    ids = {settings.target: state.target_id}
    if settings.topics:
        ids |= {each.topic: each.topic_id for each in state.ranges}
    with sources.client_for(settings, tuple(ids)) as client:
        found = client.topics(missing_is_fine=True)
    for topic, known in ids.items():
        if topic not in found or found[topic].id != known:
            lost = "the records sent to it" if topic == settings.target else "its unsent records"
            raise InvalidArgumentError(
                f"{topic} was deleted{' and recreated' if topic in found else ''} since this "
                f"replay started: {lost} are lost",
                hint="for another replay, use another --name",
            )
    has = len(found[settings.target].partitions)
    if not state.keep_partitions and has != state.target_partitions:
        raise InvalidArgumentError(
            f"{settings.target} had {state.target_partitions} partitions when this replay started, "
            f"and has {has} now: keys would move to other partitions and lose their order",
            hint="use another --name, and another target",
        )


# -- the target


def _target(settings: ReplaySettings) -> TopicView | None:
    """The current target; None if it must be created."""
    with sources.client_for(settings, (settings.target,)) as client:
        # Fails at once if no broker is reachable; later requests are retried.
        client.client.any_broker()
        found = client.topics(missing_is_fine=True).get(settings.target)
    if found is None and not settings.create:
        raise NotFoundError(
            f"unknown target topic {settings.target}",
            hint="--create creates it with as many partitions as the source, or: "
            f"moldau topic create {settings.target}",
        )
    return found


def _create_target(settings: ReplaySettings, partitions: int) -> TopicView:
    with sources.client_for(settings, (settings.target,)) as client:
        try:
            # Records keep their timestamps: the default retention would delete old ones at once.
            client.client.create_topic(
                settings.target, partitions=partitions, configs={"retention.ms": "-1"}
            )
        except RejectedError as error:
            # By another run, or by an earlier request whose response was lost.
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        return client.topics()[settings.target]


def _keeps_partitions(
    settings: ReplaySettings, ranges: Sequence[OffsetRange], target: TopicView
) -> bool:
    """Whether records keep their partition. Raises InvalidArgumentError if they must and cannot."""
    needed, has = max((each.partition + 1 for each in ranges), default=1), len(target.partitions)
    if settings.keep_partitions and has < needed:
        raise InvalidArgumentError(
            f"{settings.target} has {has} partitions, but --keep-partitions needs {needed}",
            hint=f"add some: moldau topic alter {settings.target} --partitions {needed} · or "
            "choose partitions by key: --no-keep-partitions",
        )
    return has >= needed if settings.keep_partitions is None else settings.keep_partitions


def _retention_ms(settings: ReplaySettings) -> int | None:
    """The target's retention; None: unlimited."""
    found = Admin(settings.bootstrap, librdkafka_names(settings.security)).topic_config(
        settings.target
    )
    config = {each.name: each.value or "" for each in found}
    kept = int(config.get("retention.ms") or -1)
    return None if kept < 0 or "delete" not in config.get("cleanup.policy", "") else kept


def _send(
    rows: "DataFrame", state: ReplayState, number: int, settings: ReplaySettings
) -> "Observation":
    """Writes a batch, unless it was already written; returns the count of written rows."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    partition, headers = F.col("partition"), F.col("headers")
    if not state.keep_partitions:
        # Chosen by key. Rows without a key of one partition stay together and in order.
        partition = F.when(F.col("key").isNull(), partition % F.lit(state.target_partitions))
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
        .options(txnAppId=state.id, txnVersion=str(number))
        .save()
    )
    return counted
