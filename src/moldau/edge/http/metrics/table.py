"""The table of all metrics of a broker: name, type, labels, and what each means.

Help texts and docs/reference/metrics.md come from it, and only what stands here can be exposed.
"""

from typing import Final, Literal, NamedTuple

from moldau.model.prometheus_text import MetricFamily

Kind = Literal["counter", "gauge", "histogram"]


class Definition(NamedTuple):
    """One metric family."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    is_detail: bool = False
    """Only with `?detail=partition`."""


class Section(NamedTuple):
    title: str
    families: tuple[Definition, ...]
    text: str = ""


def _counter(name: str, help_text: str, *labels: str) -> Definition:
    return Definition(name, "counter", help_text, labels)


def _gauge(name: str, help_text: str, *labels: str) -> Definition:
    return Definition(name, "gauge", help_text, labels)


def _histogram(name: str, help_text: str, *labels: str) -> Definition:
    return Definition(name, "histogram", help_text, labels)


def _detail(name: str, help_text: str, *labels: str) -> Definition:
    return Definition(name, "gauge", help_text, labels, is_detail=True)


SECTIONS: Final = (
    Section(
        "Broker and cluster",
        (
            _gauge(
                "moldau_build_info",
                "Always 1; version and broker id are labels.",
                *("version", "broker"),
            ),
            _counter(
                "moldau_metrics_failures_total",
                "Parts of this page that are missing for an internal error, since the start; the "
                "broker's log has them.",
            ),
            _gauge("moldau_ready", "1 if the broker is ready to serve clients."),
            _gauge("moldau_controller", "1 if this broker is the controller."),
            _gauge(
                "moldau_controller_known",
                "1 if this broker is the controller, or heard from it within the last seconds.",
            ),
            _gauge("moldau_metadata_version", "Version of the metadata on this broker."),
            _gauge("moldau_cluster_brokers", "Registered brokers."),
            _gauge("moldau_cluster_brokers_alive", "Brokers alive, this one included."),
            _gauge("moldau_cluster_topics", "Topics."),
            _gauge("moldau_cluster_partitions", "Partitions of all topics."),
            _gauge("moldau_cluster_partitions_leaderless", "Partitions without a leader."),
            _gauge(
                "moldau_cluster_partitions_under_replicated",
                "Partitions with a replica that is not in sync.",
            ),
        ),
        "`moldau_cluster_…` is the whole cluster as this broker sees it: do not add it up over "
        "brokers, take the median: one that is cut off sees no leaders.",
    ),
    Section(
        "Partitions and topics",
        (
            _gauge("moldau_partitions_hosted", "Replicas on this broker."),
            _gauge("moldau_partitions_led", "Partitions that this broker leads."),
            _gauge("moldau_partitions_offline", "Offline replicas: corrupt, or disk full."),
            _gauge(
                "moldau_partitions_under_min_insync",
                "Partitions led here that reject acks=all: fewer in sync than min.insync.replicas.",
            ),
            _gauge(
                "moldau_topics_without_series",
                "Topics that have no series of their own: there are too many.",
            ),
            _gauge("moldau_topic_log_bytes", "Size of the topic's logs on this broker.", "topic"),
            _gauge("moldau_topic_partitions_led", "Partitions of the topic led here.", "topic"),
            _gauge(
                "moldau_topic_high_watermark_sum",
                "Sum of the high watermarks of the partitions led here.",
                "topic",
            ),
            _gauge(
                "moldau_topic_log_start_offset_sum",
                "Sum of the first available offsets of the partitions led here.",
                "topic",
            ),
            _counter(
                "moldau_topic_written_bytes_total",
                "Record batches that clients wrote here, over any protocol.",
                "topic",
            ),
            _counter(
                "moldau_topic_written_records_total", "Records that clients wrote here.", "topic"
            ),
            _counter(
                "moldau_topic_read_bytes_total", "Record batches that clients read here.", "topic"
            ),
            _counter(
                "moldau_topic_read_records_total",
                "Records that clients read here, by offsets: with those that compaction removed.",
                "topic",
            ),
            _counter(
                "moldau_written_bytes_total",
                "Record batches that clients wrote here, over all topics, deleted ones included.",
            ),
            _counter("moldau_written_records_total", "Records that clients wrote here."),
            _counter(
                "moldau_read_bytes_total",
                "Record batches that clients read here, over all topics, deleted ones included.",
            ),
            _counter("moldau_read_records_total", "Records that clients read here, by offsets."),
            _gauge(
                "moldau_partition_high_watermark",
                "The high watermark of a partition led here.",
                *("topic", "partition"),
            ),
            _gauge(
                "moldau_partition_log_start_offset",
                "The first available offset of a partition led here.",
                *("topic", "partition"),
            ),
            _detail(
                "moldau_partition_log_bytes", "Size of the partition's log.", "topic", "partition"
            ),
            _detail("moldau_partition_replicas", "Members of its group.", "topic", "partition"),
            _detail("moldau_partition_in_sync_replicas", "Replicas in sync.", "topic", "partition"),
            _detail("moldau_partition_epoch", "The leader epoch.", "topic", "partition"),
        ),
        "Series of single partitions are those that this broker leads. The two without *detail* "
        "are always there while it leads no more than 100.",
    ),
    Section(
        "Replication, elections, peers",
        (
            _gauge(
                "moldau_replication_lag_records",
                "Records that the follower has not flushed, over the partitions led here.",
                "follower",
            ),
            _gauge(
                "moldau_replication_lag_seconds",
                "How long ago the follower last had every record, in the worst partition led here; "
                "0 if it lags in none.",
                "follower",
            ),
            _gauge(
                "moldau_replication_lagging_partitions",
                "Partitions led here of which the follower lags behind.",
                "follower",
            ),
            _counter("moldau_leaderships_total", "Leaderships of partitions taken by this broker."),
            _counter(
                "moldau_elections_total",
                "Elections in which this broker stood, by their cause.",
                "cause",
            ),
            _counter("moldau_elections_won_total", "Elections that it won.", "cause"),
            _counter(
                "moldau_raft_epoch_changes_total",
                "New leader epochs (Raft's terms), over all groups here.",
            ),
            _counter("moldau_raft_appends_sent_total", "Messages with entries, sent to followers."),
            _counter(
                "moldau_raft_appends_received_total",
                "Messages with new entries, received from leaders.",
            ),
            _counter("moldau_raft_snapshots_sent_total", "Snapshots sent to followers."),
            _counter(
                "moldau_raft_snapshots_received_total",
                "Logs that begin again at a snapshot of the leader.",
            ),
            _gauge("moldau_peer_connected", "1 if the link to the other broker is up.", "peer"),
            _counter("moldau_peer_sent_bytes_total", "Bytes for the other broker.", "peer"),
            _counter("moldau_peer_received_bytes_total", "Bytes from the other broker.", "peer"),
            _gauge(
                "moldau_peer_clock_skew_seconds",
                "How far the other broker's wall clock is ahead of this one's, exact to half of "
                "the round trip.",
                "peer",
            ),
            _gauge(
                "moldau_peer_round_trip_seconds",
                "Duration of the request that read its clock.",
                "peer",
            ),
        ),
        "`cause` is `timeout` (nothing was heard of the leader), `leader_exited` (its process "
        "ended), `transfer` (it handed over) or `requested` (a new group, or the only voter). "
        "Clocks are read when metrics are requested, and shown by the next request.",
    ),
    Section(
        "Kafka protocol",
        (
            _counter("moldau_kafka_requests_total", "Requests of Kafka clients, by API.", "api"),
            _histogram(
                "moldau_kafka_request_seconds",
                "From a Kafka request to its reply, by API; includes the wait time it allows.",
                "api",
            ),
            _histogram(
                "moldau_kafka_request_queue_seconds",
                "From the read of a request's last bytes to the start of its handler; requests "
                "that are read together count with their mean.",
            ),
            _histogram(
                "moldau_produce_commit_seconds",
                "From the append of a batch on its leader to its commit, internal topics included.",
            ),
            _histogram(
                "moldau_kafka_fetch_wait_seconds",
                "How long fetches waited that were not answered at once.",
            ),
            _gauge("moldau_kafka_fetches_parked", "Fetches that wait for data."),
            _gauge("moldau_kafka_fetch_sessions", "Open incremental fetch sessions."),
            _gauge("moldau_kafka_fetch_session_partitions", "Partitions in all fetch sessions."),
            _counter(
                "moldau_kafka_fetch_sessions_evicted_total",
                "Fetch sessions closed to make room for others; their clients open new ones.",
            ),
            _gauge("moldau_kafka_inflight_bytes", "Kafka requests in memory."),
            _gauge("moldau_kafka_connections", "Open Kafka connections, of all listeners."),
            _counter(
                "moldau_kafka_connections_accepted_total", "Accepted connections since the start."
            ),
            _counter("moldau_kafka_connections_refused_total", "Connections rejected by a limit."),
            _counter(
                "moldau_kafka_connections_failed_total",
                "Connections closed for what the client did: no TLS, a slow handshake, a request "
                "that is not valid.",
            ),
            _gauge(
                "moldau_listener_connections",
                "Open connections, by listener.",
                *("listener", "protocol"),
            ),
            _counter(
                "moldau_listener_connections_accepted_total",
                "Accepted connections, by listener.",
                *("listener", "protocol"),
            ),
        ),
        "`protocol` is `kafka`, `peers` or `http`. The library of gRPC does not count connections.",
    ),
    Section(
        "Security and quotas",
        (
            _counter(
                "moldau_logins_total",
                "Logins of clients, by mechanism and result; HTTP and gRPC log in with each "
                "request.",
                *("mechanism", "result"),
            ),
            _gauge(
                "moldau_certificate_expiry_seconds",
                "Time until a certificate expires; negative afterwards.",
                "file",
            ),
            _counter(
                "moldau_throttled_requests_total", "Requests over a quota, by its name.", "quota"
            ),
            _counter(
                "moldau_throttled_seconds_total", "How long their clients have to wait.", "quota"
            ),
        ),
        "`result` is `success`, `failure`, or `unchecked` after too many failures. Basic counts as "
        "`PLAIN`, a bearer token as `OAUTHBEARER`; with TLS alone the mechanism is `certificate`.",
    ),
    Section(
        "HTTP",
        (
            _counter(
                "moldau_http_requests_total",
                "Requests over HTTP, by method and status.",
                *("method", "status"),
            ),
            _histogram("moldau_http_request_seconds", "From request to reply; without streams."),
            _gauge("moldau_http_connections", "Open HTTP connections."),
            _counter(
                "moldau_http_connections_accepted_total", "Accepted connections since the start."
            ),
            _counter("moldau_http_connections_refused_total", "Connections rejected by a limit."),
            _gauge("moldau_http_tails", "Open tail streams."),
            _gauge("moldau_http_held_bytes", "Bodies and large replies in memory."),
            _counter(
                "moldau_http_requests_without_room_total",
                "Requests rejected by the limit of held bytes.",
            ),
        ),
    ),
    Section(
        "Consumer groups",
        (
            _gauge("moldau_groups", "Groups coordinated here, by type and state.", "type", "state"),
            _gauge(
                "moldau_group_lag",
                "Unprocessed records.",
                *("group", "topic"),
            ),
            _gauge(
                "moldau_group_lag_seconds",
                "Age of the oldest unprocessed record, in the partition where it is oldest.",
                *("group", "topic"),
            ),
            _gauge(
                "moldau_group_lag_unknown_partitions",
                "Partitions with a committed offset and an unknown lag: no replica is here, and "
                "their leader has not responded yet.",
                *("group", "topic"),
            ),
            _gauge(
                "moldau_groups_without_series",
                "Groups whose lag has no series: there are too many.",
            ),
            _detail(
                "moldau_group_partition_lag",
                "Unprocessed records of a partition.",
                *("group", "topic", "partition"),
            ),
            _detail(
                "moldau_group_partition_offset",
                "The committed offset.",
                *("group", "topic", "partition"),
            ),
        ),
        "On the group's coordinator. The age of a record is since the high watermark passed it, "
        "interpolated between scrapes; if it is from before the first scrape, since its own "
        "timestamp. For partitions without a replica here, leaders are asked after each scrape for "
        "the next one, and the age begins with the first of these answers. Groups are left out "
        "while their coordinator loads.",
    ),
    Section(
        "Work queues",
        (
            _gauge(
                "moldau_queue_messages",
                "Messages by state.",
                *("group", "topic", "state"),
            ),
            _counter("moldau_queue_deliveries_total", "Messages delivered.", "group", "topic"),
            _counter(
                "moldau_queue_redeliveries_total",
                "Messages delivered that had been delivered before.",
                *("group", "topic"),
            ),
            _counter(
                "moldau_queue_settled_total",
                "Deliveries that ended, by outcome.",
                *("group", "topic", "outcome"),
            ),
            _counter(
                "moldau_queue_dead_letters_total",
                "Messages that became dead letters.",
                *("group", "topic"),
            ),
            _histogram(
                "moldau_queue_settle_seconds", "From the delivery of a message to its ack.", "group"
            ),
        ),
        "On the leaders of the partitions. `state` is `ready` (with all that no worker came to, "
        "also delayed ones), `leased`, `delayed`, or `dead` (to be moved to the dead-letter "
        "topic); `outcome` is `ack`, `nack` or `expired`. A scrape loads no queue: one that no "
        "worker, `queue stats` or `queue peek` used since its leader changed or restarted has no "
        "`moldau_queue_messages`; one that was used and unloaded keeps counting what is written.",
    ),
    Section(
        "Transactions",
        (
            _gauge(
                "moldau_transactional_ids",
                "Transactional ids coordinated here, by state.",
                "state",
            ),
            _gauge("moldau_transactions_open", "Open transactions coordinated here."),
            _gauge(
                "moldau_transactions_oldest_open_seconds",
                "Age of the oldest open transaction; 0 without one.",
            ),
            _counter(
                "moldau_transactions_ended_total",
                "Transactions that were committed or aborted here, by result.",
                "result",
            ),
        ),
        "On the coordinator of the transactional id. `result` is `committed` or `aborted`, which "
        "includes those that timed out.",
    ),
    Section(
        "Logs and disk",
        (
            _counter("moldau_log_flushes_total", "Flushes of logs to disk."),
            _histogram("moldau_log_flush_seconds", "Duration of flushes."),
            _gauge("moldau_log_flush_small_seconds", "Moving average of small flushes."),
            _gauge("moldau_disk_free_bytes", "Free space of the data disk."),
            _gauge("moldau_disk_total_bytes", "Size of the data disk."),
            _gauge(
                "moldau_disk_reserve_bytes",
                "With less free space, produce requests are rejected (log.disk_reserve_bytes).",
            ),
            _counter(
                "moldau_log_scrubbed_bytes_total",
                "Stored bytes that were read again to find damage (log.scrub_interval_ms).",
            ),
            _counter("moldau_log_scrub_damaged_total", "Partitions found corrupt by that."),
            _gauge("moldau_compaction_due_partitions", "Logs due for compaction."),
            _counter("moldau_compaction_runs_total", "Compactions."),
            _counter("moldau_compaction_failures_total", "Failed compactions."),
            _counter("moldau_compaction_read_bytes_total", "Bytes read by compactions."),
            _counter("moldau_compaction_written_bytes_total", "Bytes written by compactions."),
            _counter("moldau_compaction_read_records_total", "Records read by compactions."),
            _counter("moldau_compaction_dropped_records_total", "Records dropped by compactions."),
            _counter("moldau_compaction_seconds_total", "Duration of compactions."),
        ),
    ),
    Section(
        "Event loop",
        (
            _histogram(
                "moldau_loop_delay_seconds",
                "How late a timer was, 20 times a second: how long clients wait for the loop.",
            ),
            _counter("moldau_loop_slow_turns_total", "Turns of the event loop above 0.1 s."),
            _counter("moldau_loop_slow_seconds_total", "Time of these turns."),
            _counter(
                "moldau_loop_starved_seconds_total",
                "Of it, time in which the process got no CPU, or waited for the disk.",
            ),
        ),
        "A broker serves all its clients in one event loop. Timers have milliseconds.",
    ),
    Section(
        "Spark pipelines",
        (
            _gauge(
                "moldau_pipeline_info",
                "Always 1; kind and state are labels.",
                *("pipeline", "kind", "state"),
            ),
            _counter(
                "moldau_pipeline_batches_total", "Micro-batches since its checkpoint.", "pipeline"
            ),
            _counter("moldau_pipeline_rows_total", "Rows since its start.", "pipeline"),
            _counter(
                "moldau_pipeline_dead_letters_total", "Dead letters since its start.", "pipeline"
            ),
            _gauge(
                "moldau_pipeline_lag_records",
                "Records in its topics that it has not processed.",
                "pipeline",
            ),
            _gauge(
                "moldau_pipeline_status_age_seconds",
                "Time since its last report; a running one reports every second.",
                "pipeline",
            ),
            _counter(
                "moldau_pipeline_reports_dropped_total",
                "Records of the topic that are no report, or name a kind or state that this "
                "version does not know; read again by a new leader.",
            ),
        ),
        "From what pipelines publish on the topic `__moldau_pipelines`, on the broker that leads "
        "it: the 200 that reported last.",
    ),
    Section(
        "Process",
        (
            _counter("process_cpu_seconds_total", "CPU time of the broker process."),
            _gauge("process_resident_memory_bytes", "Resident memory."),
            _gauge("process_virtual_memory_bytes", "Virtual memory."),
            _gauge("process_open_fds", "Open file descriptors."),
            _gauge("process_max_fds", "Limit of open file descriptors."),
            _gauge("process_start_time_seconds", "Start time, in seconds since 1970."),
            _gauge("moldau_node_process_up", "1 if this process of a node responds.", "process"),
        ),
        "At the address of a node of several processes, all series have the label `process`.",
    ),
)

DEFINITIONS: Final = {one.name: one for section in SECTIONS for one in section.families}


def family(name: str, value: float | None = None) -> MetricFamily:
    """A family to add samples to, or with one that has no labels. KeyError: it is not defined."""
    definition = DEFINITIONS[name]
    found = MetricFamily(definition.name, definition.kind, definition.help)
    if value is not None:
        found.add(value)
    return found
