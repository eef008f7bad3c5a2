"""Metrics of what clients do over Kafka and HTTP: requests, connections, logins, quotas."""

from collections.abc import Iterator
from typing import NamedTuple

from moldau.api.metric_sources import MetricSources, OneListener
from moldau.api.metrics_view import MetricsView
from moldau.edge.http.limits import ConnectionCounts
from moldau.edge.http.metrics.table import family
from moldau.edge.http.middleware import LimitsMiddleware
from moldau.model.histogram import Histogram
from moldau.model.prometheus_text import MetricFamily


class HttpTraffic(NamedTuple):
    connections: ConnectionCounts
    middleware: LimitsMiddleware
    tails: int


def kafka_families(view: MetricsView, sources: MetricSources) -> Iterator[MetricFamily]:
    requests = family("moldau_kafka_requests_total")
    for api, count in sources.requests_by_api().items():
        requests.add(count, {"api": api})
    yield requests
    seconds = family("moldau_kafka_request_seconds")
    for api, durations in sources.seconds_by_api().items():
        # Most APIs are never used, and each takes twenty lines.
        if durations.sum:
            seconds.add_durations(durations, {"api": api})
    yield seconds
    yield durations_of("moldau_kafka_request_queue_seconds", sources.queue_seconds())
    yield durations_of("moldau_produce_commit_seconds", sources.raft.commit_seconds)
    yield durations_of("moldau_kafka_fetch_wait_seconds", view.fetch_wait_seconds)
    yield family("moldau_kafka_fetches_parked", view.fetches_parked)
    sessions = view.fetch_sessions
    yield family("moldau_kafka_fetch_sessions", len(sessions))
    yield family("moldau_kafka_fetch_session_partitions", sessions.partition_count)
    yield family("moldau_kafka_fetch_sessions_evicted_total", sessions.evicted_total)
    listener = sources.listener
    yield family("moldau_kafka_inflight_bytes", listener.inflight_bytes)
    yield family("moldau_kafka_connections", listener.connection_count)
    yield family("moldau_kafka_connections_accepted_total", listener.accepted_total)
    yield family("moldau_kafka_connections_refused_total", listener.refused_total)
    yield family("moldau_kafka_connections_failed_total", listener.failed_total)


def security_families(view: MetricsView, sources: MetricSources) -> Iterator[MetricFamily]:
    logins = family("moldau_logins_total")
    for (mechanism, result), count in sorted(sources.logins().items()):
        logins.add(count, {"mechanism": mechanism, "result": result})
    yield logins
    expiry = family("moldau_certificate_expiry_seconds")
    for file, expires_at in sorted(sources.certificates().items()):
        expiry.add(round(expires_at - view.clock.wall_ms() / 1000), {"file": file})
    yield expiry
    throttled = family("moldau_throttled_requests_total")
    waits = family("moldau_throttled_seconds_total")
    for key, count in sources.quotas.throttled.items():
        throttled.add(count, {"quota": key})
        waits.add(sources.quotas.throttled_seconds[key], {"quota": key})
    yield throttled
    yield waits


def http_families(traffic: HttpTraffic) -> Iterator[MetricFamily]:
    connections, middleware, tails = traffic
    requests = family("moldau_http_requests_total")
    for (method, status), count in sorted(middleware.requests.items()):
        requests.add(count, {"method": method, "status": str(status)})
    yield requests
    yield durations_of("moldau_http_request_seconds", middleware.seconds)
    yield family("moldau_http_connections", connections.open)
    yield family("moldau_http_connections_accepted_total", connections.accepted_total)
    yield family("moldau_http_connections_refused_total", connections.refused_total)
    yield family("moldau_http_tails", tails)
    yield family("moldau_http_held_bytes", middleware.buffered_bytes)
    yield family("moldau_http_requests_without_room_total", middleware.refused_total)


def listener_families(sources: MetricSources, traffic: HttpTraffic) -> Iterator[MetricFamily]:
    count = family("moldau_listener_connections")
    accepted = family("moldau_listener_connections_accepted_total")
    http = traffic.connections
    for one in (*sources.listeners(), OneListener("http", "http", http.open, http.accepted_total)):
        labels = {"listener": one.name, "protocol": one.protocol}
        count.add(one.connection_count, labels)
        accepted.add(one.accepted_total, labels)
    yield count
    yield accepted


def durations_of(name: str, durations: Histogram) -> MetricFamily:
    found = family(name)
    found.add_durations(durations)
    return found
