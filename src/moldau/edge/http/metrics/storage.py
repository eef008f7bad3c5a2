"""Metrics of logs, disk and compaction, and of the event loop."""

from collections.abc import Iterator

from moldau.api.metric_sources import MetricSources
from moldau.api.metrics_view import MetricsView
from moldau.edge.http.metrics.clients import durations_of
from moldau.edge.http.metrics.table import family
from moldau.model.prometheus_text import MetricFamily


def storage_families(view: MetricsView, sources: MetricSources) -> Iterator[MetricFamily]:
    flusher = sources.flusher
    yield family("moldau_log_flushes_total", flusher.flushes_total)
    yield durations_of("moldau_log_flush_seconds", flusher.seconds)
    yield family("moldau_log_flush_small_seconds", flusher.small_flush_seconds)
    yield family("moldau_disk_free_bytes", view.disk_free_bytes())
    yield family("moldau_disk_total_bytes", view.disk_total_bytes())
    scrub = sources.scrub()
    if scrub is not None:
        yield family("moldau_log_scrubbed_bytes_total", scrub.bytes)
        yield family("moldau_log_scrub_damaged_total", scrub.corrupt)
    cleaner = sources.cleaner()
    if cleaner is not None:
        yield family("moldau_compaction_due_partitions", cleaner.due())
        yield family("moldau_compaction_runs_total", cleaner.cleanings)
        yield family("moldau_compaction_failures_total", cleaner.failures)
        yield family("moldau_compaction_read_bytes_total", cleaner.bytes_read)
        yield family("moldau_compaction_written_bytes_total", cleaner.bytes_written)
        yield family("moldau_compaction_read_records_total", cleaner.records_read)
        yield family("moldau_compaction_dropped_records_total", cleaner.records_dropped)
        yield family("moldau_compaction_seconds_total", cleaner.seconds)


def loop_families(sources: MetricSources) -> Iterator[MetricFamily]:
    turns, seconds, starved, delay = sources.slow_turns()
    yield durations_of("moldau_loop_delay_seconds", delay)
    yield family("moldau_loop_slow_turns_total", turns)
    yield family("moldau_loop_slow_seconds_total", seconds)
    yield family("moldau_loop_starved_seconds_total", starved)
