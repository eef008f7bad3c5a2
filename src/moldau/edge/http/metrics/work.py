"""Metrics of work queues, transactions, and of Spark pipelines by what they report."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from itertools import islice

from moldau.api.metric_sources import MetricSources
from moldau.api.metrics_view import MetricsView
from moldau.api.pipeline_reports import PipelineReports
from moldau.api.types import TransactionTotals
from moldau.edge.http.metrics import limits
from moldau.edge.http.metrics.table import family
from moldau.model.histogram import Histogram, total
from moldau.model.prometheus_text import MetricFamily


async def queue_families(view: MetricsView) -> AsyncIterator[MetricFamily]:
    states: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for number, (group, topic, backlog) in enumerate(view.queue_backlogs(), 1):
        states[group, topic].update(backlog._asdict())
        if number % limits.ITEMS_PER_TURN == 0:
            await asyncio.sleep(0)
    messages = family("moldau_queue_messages")
    for (group, topic), counts in islice(sorted(states.items()), limits.QUEUES_MAX):
        for state in ("ready", "leased", "delayed", "dead"):
            messages.add(counts[state], {"group": group, "topic": topic, "state": state})
    yield messages
    delivered = family("moldau_queue_deliveries_total")
    again = family("moldau_queue_redeliveries_total")
    settled = family("moldau_queue_settled_total")
    dead = family("moldau_queue_dead_letters_total")
    durations: dict[str, list[Histogram]] = defaultdict(list)
    found = sorted(view.queue_counts.items(), key=lambda item: item[0])
    for (group, topic), numbers in islice(found, limits.QUEUES_MAX):
        labels = {"group": group, "topic": topic}
        delivered.add(numbers.deliveries, labels)
        again.add(numbers.redeliveries, labels)
        settled.add(numbers.acked, {**labels, "outcome": "ack"})
        settled.add(numbers.nacked, {**labels, "outcome": "nack"})
        settled.add(numbers.expired, {**labels, "outcome": "expired"})
        dead.add(numbers.dead_letters, labels)
        durations[group].append(numbers.settle_seconds)
    for one in (delivered, again, settled, dead):
        yield one
    settle = family("moldau_queue_settle_seconds")
    for group, parts in durations.items():
        settle.add_durations(total(parts), {"group": group})
    yield settle


async def transaction_families(
    view: MetricsView, sources: MetricSources
) -> AsyncIterator[MetricFamily]:
    found: list[TransactionTotals | None] = []
    for one in view.transaction_totals():
        found.append(one)
        await asyncio.sleep(0)
    known = [one for one in found if one is not None]
    if len(known) == len(found):
        counts: Counter[str] = Counter()
        for one in known:
            counts.update(one.ids_by_state)
        ids = family("moldau_transactional_ids")
        for state, number in sorted(counts.items()):
            ids.add(number, {"state": state})
        yield ids
    yield family("moldau_transactions_open", sum(one.open for one in known))
    started = [one.oldest_started_at for one in known if one.oldest_started_at is not None]
    age = max(0, view.clock.wall_ms() - min(started)) / 1000 if started else 0.0
    yield family("moldau_transactions_oldest_open_seconds", age)
    ended = family("moldau_transactions_ended_total")
    ended.add(sources.ended_transactions.committed, {"result": "committed"})
    ended.add(sources.ended_transactions.aborted, {"result": "aborted"})
    yield ended


async def pipeline_families(
    view: MetricsView, reports: PipelineReports
) -> AsyncIterator[MetricFamily]:
    while reports.read_some(view.replicas):
        await asyncio.sleep(0)
    info = family("moldau_pipeline_info")
    batches = family("moldau_pipeline_batches_total")
    rows = family("moldau_pipeline_rows_total")
    dead = family("moldau_pipeline_dead_letters_total")
    lag = family("moldau_pipeline_lag_records")
    age = family("moldau_pipeline_status_age_seconds")
    for name, report in sorted(reports.reports.items()):
        labels, progress = {"pipeline": name}, report.progress
        info.add(1, {**labels, "kind": report.kind, "state": report.state})
        # Batches are numbered from 0.
        batches.add(0 if progress.batch is None else progress.batch + 1, labels)
        rows.add(progress.rows, labels)
        dead.add(progress.dead_letters, labels)
        if progress.lag is not None:
            lag.add(progress.lag, labels)
        age.add(max(0, view.clock.wall_ms() - report.updated_at) / 1000, labels)
    dropped = family("moldau_pipeline_reports_dropped_total", reports.dropped_count)
    for one in (info, batches, rows, dead, lag, age, dropped):
        yield one
