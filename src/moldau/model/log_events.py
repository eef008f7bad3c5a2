"""The events that a broker logs and an operator should act on: the one table of their names.

Names are stable: people search for them, and alerts are built on them. docs/operate/logs.md is
generated from this table; a test compares it with the calls that log.

    log.error("partition %s-%d is offline: %s", …, extra=events.PARTITION_OFFLINE(topic=name))
"""

from typing import Final, Literal

from msgspec import Struct

Level = Literal["info", "warning", "error", "critical"]


class Event(Struct, frozen=True):
    """Called, it returns what a log call takes as `extra`: the event, and fields of the line."""

    name: str
    level: Level
    meaning: str
    remedy: str

    def __call__(self, **fields: object) -> dict[str, object]:
        return {"event": self.name, **fields}


EVENTS: Final[dict[str, list[Event]]] = {}
"""By subject, in the order of the page."""


def _section(title: str) -> list[Event]:
    return EVENTS.setdefault(title, [])


def _event(section: list[Event], name: str, level: Level, meaning: str, remedy: str) -> Event:
    event = Event(name, level, meaning, remedy)
    section.append(event)
    return event


_DISK: Final = _section("Disk and data")

DISK_FAILED: Final = _event(
    _DISK,
    "disk-failed",
    "critical",
    "A write or flush failed. What the page cache holds cannot be trusted any more, so the "
    "broker stops with exit code 74 and leaves its data directory unchanged.",
    "Look at the kernel's log (`dmesg`) and at the disk. If the disk is good, start the broker "
    "again: it rewrites the ends of its logs first. If not, replace the disk, start with an "
    "empty directory and join as a new broker, then remove the old one: `moldau broker remove "
    "N`.",
)
DISK_WRITE_FAILED: Final = _event(
    _DISK,
    "disk-write-failed",
    "error",
    "A write in the background failed. `disk-failed` follows, and the broker stops.",
    "As for `disk-failed`.",
)
DISK_FENCE_FAILED: Final = _event(
    _DISK,
    "disk-fence-failed",
    "critical",
    "The disk failed, and not even the note about it could be written, which the next start needs.",
    "Do not start from this directory again. Replace the disk, start with an empty directory and "
    "join as a new broker.",
)
RESTARTED_AFTER_DISK_FAILURE: Final = _event(
    _DISK,
    "restarted-after-disk-failure",
    "warning",
    "The last run stopped because its disk failed. The broker rewrites the ends of all logs "
    "before it acknowledges anything.",
    "Nothing, if the disk is known to be good. If this repeats, replace the disk.",
)
DISK_RESERVE_REACHED: Final = _event(
    _DISK,
    "disk-reserve-reached",
    "error",
    "Less than `log.disk_reserve_bytes` is free on the data disk: produce requests are rejected.",
    "Free space: delete topics, lower `retention.ms` or `retention.bytes` of large ones, or "
    "enlarge the disk. Produce is accepted again by itself (`disk-reserve-free`).",
)
DISK_RESERVE_FREE: Final = _event(
    _DISK,
    "disk-reserve-free",
    "warning",
    "The data disk has enough free space again: produce requests are accepted.",
    "Nothing now. Find out what filled the disk before it happens again.",
)
DISK_FULL: Final = _event(
    _DISK,
    "disk-full",
    "warning",
    "A write of a partition found no space. It is retried, and nothing is lost.",
    "As for `disk-reserve-reached`.",
)
MAINTENANCE_SKIPPED: Final = _event(
    _DISK,
    "maintenance-skipped",
    "warning",
    "Retention or other upkeep could not write for lack of space; it is retried.",
    "As for `disk-reserve-reached`.",
)
PARTITION_OFFLINE: Final = _event(
    _DISK,
    "partition-offline",
    "error",
    "The replica of a partition on this broker cannot be used; the line says why. Other replicas "
    "serve the partition.",
    "For a full disk: free space, it comes back by itself. For a corrupt log: the broker "
    "rebuilds it from the leader if that is safe. Else see `replica-corrupt`.",
)
PARTITION_ONLINE: Final = _event(
    _DISK,
    "partition-online",
    "warning",
    "A partition that was offline is served again.",
    "Nothing.",
)
REPLICA_CORRUPT: Final = _event(
    _DISK,
    "replica-corrupt",
    "error",
    "A replica has records whose checksum is wrong, and too few other replicas are in sync to "
    "rebuild it. Its intact records are still served.",
    "Bring the other replicas back: `moldau broker status` names the brokers that are missing. "
    "The next scrub then rebuilds this replica. Check the disk.",
)
REPLICA_REBUILDING: Final = _event(
    _DISK,
    "replica-rebuilding",
    "warning",
    "A corrupt replica is rebuilt from its leader; the old log is kept in the place that is named.",
    "Check the disk and the memory of the machine. Delete the old log when nobody needs it.",
)
REPLICA_REBUILD_FAILED: Final = _event(
    _DISK,
    "replica-rebuild-failed",
    "error",
    "A corrupt log could not be moved aside, so its partition stays offline here.",
    "Repair what the line names (rights, space), then restart the broker.",
)
REPLICA_STOPPED: Final = _event(
    _DISK,
    "replica-stopped",
    "error",
    "A replica stopped on this broker, because of a corrupt log, a failed disk or an internal "
    "error. Its files are kept.",
    "For a corrupt log, wait for `replica-rebuilding`. With a traceback it is a bug: report it, "
    "and restart the broker.",
)
ENTRIES_CORRUPT: Final = _event(
    _DISK,
    "entries-corrupt",
    "error",
    "A follower rejected entries from its leader whose checksum is wrong.",
    "If it repeats, the leader's disk, memory or network damages data: check that machine. A "
    "leader with a corrupt log steps down and is rebuilt.",
)
ENTRIES_SENT_AGAIN: Final = _event(
    _DISK,
    "entries-sent-again",
    "warning",
    "A follower reported corrupt entries that are intact here: they were damaged on the way.",
    "If it repeats, check the network between the two brokers, and the memory of both.",
)
COMPACTION_FAILED: Final = _event(
    _DISK,
    "compaction-failed",
    "error",
    "A log could not be compacted; it is retried with growing pauses. The log grows meanwhile.",
    "Repair what the line names: space on the disk, open files, or a corrupt log.",
)
SCRUB_SKIPPED: Final = _event(
    _DISK,
    "scrub-skipped",
    "warning",
    "The regular check of a log could not read it; it is checked at the next time.",
    "If it repeats, check the disk and the limit of open files (`file-limit-low`).",
)
LOG_NOT_CLOSED: Final = _event(
    _DISK,
    "log-not-closed",
    "warning",
    "The disk was full at the stop. The log is recovered at the next start, which takes longer.",
    "Free space before the next start.",
)
STRAY_LOG_FOUND: Final = _event(
    _DISK,
    "stray-log-found",
    "warning",
    "The data directory has the log of a partition that has no replica on this broker. It was "
    "moved to the place that is named.",
    "Delete it when nobody needs it.",
)
DATA_DIR_READABLE: Final = _event(
    _DISK,
    "data-dir-readable",
    "warning",
    "Other users of the machine can read the data directory.",
    "`chmod 700` the directory that the line names.",
)
AUDIT_WRITE_FAILED: Final = _event(
    _DISK,
    "audit-write-failed",
    "error",
    "A line of the audit log could not be written; the line is in this message.",
    "Free space, or repair the rights of `audit.log` in the data directory.",
)

_CLUSTER: Final = _section("Cluster and replication")

PEER_SECRET_REFUSED: Final = _event(
    _CLUSTER,
    "peer-secret-refused",
    "warning",
    "Another broker does not prove the secret of this cluster, or closes connections of this one.",
    "Copy `cluster.secret` from the data directory of a broker that works. If the address "
    "belongs to another cluster, correct `raft.advertised`. See docs/operate/clusters.md.",
)
PEER_TLS_FAILED: Final = _event(
    _CLUSTER,
    "peer-tls-failed",
    "warning",
    "There is no TLS connection with another broker; it is retried.",
    "Compare the certificates and CAs of both: `openssl x509 -text -in FILE`; see "
    "docs/operate/tls.md.",
)
PEER_REJECTED: Final = _event(
    _CLUSTER,
    "peer-rejected",
    "warning",
    "One of two brokers rejects connections of the other: another cluster, another id, or a "
    "version that it does not know.",
    "The line has the reason. Correct the address or upgrade the older broker.",
)
PEER_MESSAGE_MALFORMED: Final = _event(
    _CLUSTER,
    "peer-message-malformed",
    "warning",
    "Another broker sent what cannot be decoded.",
    "Compare the versions of both brokers: `moldau --version`.",
)
MEMBER_REJECTED_BROKER: Final = _event(
    _CLUSTER,
    "member-rejected-broker",
    "warning",
    "A member of the cluster rejects the registration of this broker.",
    "The line has the reason: usually another process with the same id or data directory, or an "
    "address that belongs to another cluster.",
)
BROKER_SUPERSEDED: Final = _event(
    _CLUSTER,
    "broker-superseded",
    "critical",
    "Another process registered with the id of this broker: this one stops.",
    "Run one process per id. A copy of a data directory must not be started.",
)
BROKER_REMOVED: Final = _event(
    _CLUSTER,
    "broker-removed",
    "warning",
    "This broker was removed from its cluster (`moldau broker remove`): its process ends.",
    "Nothing, if this was intended. Its data directory can be deleted.",
)
JOIN_REFUSED: Final = _event(
    _CLUSTER,
    "join-refused",
    "warning",
    "A process wanted to join this cluster without a valid secret or token.",
    "For a broker of yours: give it a new token (`moldau cluster token create`). Else find out "
    "who it was; the audit log has the address.",
)
NOT_A_VOTER: Final = _event(
    _CLUSTER,
    "not-a-voter",
    "warning",
    "This broker does not vote in the metadata group yet, and starts anyway.",
    "Nothing, if it catches up soon. Else look at the connections to the other brokers: `moldau "
    "doctor`.",
)
VOTER_LOST_LOG: Final = _event(
    _CLUSTER,
    "voter-lost-log",
    "warning",
    "A broker lost the log of a partition. It votes again when it has caught up.",
    "Find out why: a replaced disk is expected, anything else is not.",
)
REPLICA_FORCED: Final = _event(
    _CLUSTER,
    "replica-forced",
    "warning",
    "A partition lost a majority of its replicas for good. `moldau partition recover` made the "
    "replica of this broker the only voter: acknowledged records that only others had are lost.",
    "Compare with the sources of the records what is missing. Add brokers if replicas are missing.",
)
SNAPSHOT_DELAYED: Final = _event(
    _CLUSTER,
    "snapshot-delayed",
    "warning",
    "A snapshot for a follower cannot be made now; it is retried.",
    "If it repeats, look at earlier errors of the same partition.",
)
SNAPSHOT_TOO_LARGE: Final = _event(
    _CLUSTER,
    "snapshot-too-large",
    "error",
    "The state of a group exceeds the limit of a snapshot, so a broker cannot catch up.",
    "Reduce it: delete topics, groups or ACLs that nobody uses. Report it.",
)
PREFETCH_FAILED: Final = _event(
    _CLUSTER,
    "prefetch-failed",
    "error",
    "Old entries for a follower could not be read from the disk.",
    "Check the disk. The follower stays behind until they can be read.",
)

_NETWORK: Final = _section("Connections and security")

CONNECTION_REJECTED: Final = _event(
    _NETWORK,
    "connection-rejected",
    "warning",
    "A new connection was closed: a limit of connections is reached.",
    "Find the client that opens too many, or raise the limit that the line names.",
)
ACCEPT_FAILED: Final = _event(
    _NETWORK,
    "accept-failed",
    "warning",
    "The operating system gives no more connections, usually for lack of file descriptors.",
    "Raise the limit of open files (`ulimit -n`, `LimitNOFILE` of systemd).",
)
CONNECTION_FAILED: Final = _event(
    _NETWORK,
    "connection-failed",
    "warning",
    "A connection was closed before its client was known: no TLS, a certificate that is not "
    "trusted, or too slow.",
    "Correct the client's settings. Lines of an address are limited; the number left out is given.",
)
LOGIN_FAILED: Final = _event(
    _NETWORK,
    "login-failed",
    "warning",
    "A client failed to log in.",
    "Correct its user, password or token. Many from one address may be an attack; the audit log "
    "has the names.",
)
TOKEN_KEYS_UNAVAILABLE: Final = _event(
    _NETWORK,
    "token-keys-unavailable",
    "error",
    "The keys that bearer tokens are checked with cannot be fetched. Keys fetched before stay in "
    "use; without any, logins by token fail.",
    "Check the address that the line names, and the issuer of the tokens; it is retried.",
)
CLIENT_CERTIFICATE_INVALID: Final = _event(
    _NETWORK,
    "client-certificate-invalid",
    "warning",
    "A client has a certificate that cannot be parsed; its calls are refused.",
    "Give the client a new certificate.",
)
CERTIFICATE_EXPIRES: Final = _event(
    _NETWORK,
    "certificate-expires",
    "warning",
    "A certificate of this broker expires soon, does not have the advertised host, or its key "
    "can be read by others; the line says which.",
    "Replace the file: it is loaded without a restart. `chmod 600` a key that others can read.",
)
CERTIFICATE_REFUSED: Final = _event(
    _NETWORK,
    "certificate-refused",
    "warning",
    "A certificate was loaded that clients refuse: it has expired, or is not valid yet.",
    "Replace the file, or correct the clock of the machine.",
)
CERTIFICATE_NOT_LOADED: Final = _event(
    _NETWORK,
    "certificate-not-loaded",
    "error",
    "New certificate files cannot be used. The old certificate stays, until it expires.",
    "Correct the files; they are read again by themselves. `moldau doctor` checks them.",
)
ADMIN_TOKEN_NOT_WRITTEN: Final = _event(
    _NETWORK,
    "admin-token-not-written",
    "warning",
    "The token of the local administrator could not be written to the data directory.",
    "Repair rights or space of the data directory and restart, or use another administrator.",
)
CONFIG_UNSAFE: Final = _event(
    _NETWORK,
    "config-unsafe",
    "warning",
    "A setting is allowed, and dangerous: a listener without authentication or encryption.",
    "Use TLS and users (docs/operate/tls.md), or make sure that only trusted machines reach it.",
)
REQUEST_REJECTED: Final = _event(
    _NETWORK,
    "request-rejected",
    "warning",
    "A request of a client was rejected as a whole; the line says why.",
    "Correct the client. Lines are limited; the number left out is given.",
)

_QUEUES: Final = _section("Work queues, groups and transactions")

DEAD_LETTER_LOST: Final = _event(
    _QUEUES,
    "dead-letter-lost",
    "warning",
    "A message could not become a dead letter: retention deleted it before, or it is too large.",
    "Lengthen the retention of the topic, or raise `max.message.bytes` of the dead-letter topic.",
)
DEAD_LETTER_TRUNCATED: Final = _event(
    _QUEUES,
    "dead-letter-truncated",
    "warning",
    "A dead letter was written without its value, because it is too large for its topic.",
    "Raise `max.message.bytes` of the dead-letter topic. The original is at the offset named.",
)
DEAD_LETTERS_NOT_MOVED: Final = _event(
    _QUEUES,
    "dead-letters-not-moved",
    "warning",
    "Dead letters cannot be written to their topic; it is retried.",
    "The line has the reason: usually the dead-letter topic has too few in-sync replicas.",
)
MESSAGES_UNREADABLE: Final = _event(
    _QUEUES,
    "messages-unreadable",
    "warning",
    "A queue cannot read some messages of its topic. They become dead letters.",
    "Correct the producer. The line names the offsets.",
)
MESSAGES_DELETED_UNSETTLED: Final = _event(
    _QUEUES,
    "messages-deleted-unsettled",
    "warning",
    "Retention deleted messages that no worker had finished.",
    "Add workers, or lengthen the retention of the topic.",
)
QUEUE_STATE_CORRUPT: Final = _event(
    _QUEUES,
    "queue-state-corrupt",
    "error",
    "The stored state of a queue cannot be read: the queue of this partition is not served.",
    "Report it. Another replica of `__queue_state` may be intact: transfer its leadership.",
)
QUEUE_STATE_NOT_DELETED: Final = _event(
    _QUEUES,
    "queue-state-not-deleted",
    "warning",
    "The state of a queue of a deleted topic could not be deleted; it is retried.",
    "Nothing, unless it repeats.",
)
COORDINATOR_WRITE_FAILED: Final = _event(
    _QUEUES,
    "coordinator-write-failed",
    "error",
    "A group or transaction could not be stored, because the disk failed.",
    "As for `disk-failed`.",
)
MARKER_REJECTED: Final = _event(
    _QUEUES,
    "marker-rejected",
    "warning",
    "A partition rejected the end of a transaction: a newer producer has replaced this one.",
    "Nothing, unless transactions hang: `moldau transaction list`.",
)
ASSIGNOR_FAILED: Final = _event(
    _QUEUES,
    "assignor-failed",
    "error",
    "An assignor that was installed as a plugin failed; the groups that use it keep what they "
    "have.",
    "Repair the plugin, or take it out of the settings.",
)

REDRIVE_UNSETTLED: Final = _event(
    _QUEUES,
    "redrive-unsettled",
    "warning",
    "Dead letters were sent again, but it could not be stored that they were: a later redrive may "
    "send them once more.",
    "Expect duplicates of these messages. The line says why; mostly the leader has changed.",
)

_PROCESS: Final = _section("Process and machine")

START_FAILED: Final = _event(
    _PROCESS,
    "start-failed",
    "critical",
    "The broker cannot start. Logged with `logging.format: json` only; as text, the same error "
    "is the last line on stderr.",
    "The message has the reason and the next step.",
)
BROKER_FAILED: Final = _event(
    _PROCESS,
    "broker-failed",
    "critical",
    "An internal error stops the broker, with exit code 70. Nothing that was acknowledged is lost.",
    "Report the traceback, and start the broker again.",
)
INTERNAL_ERROR: Final = _event(
    _PROCESS,
    "internal-error",
    "error",
    "A bug: one request or job failed, the rest continues.",
    "Report the traceback.",
)
HTTP_STOPPED: Final = _event(
    _PROCESS,
    "http-stopped",
    "critical",
    "An internal error ended the HTTP listener. Other protocols are served.",
    "Report the traceback, and restart the broker.",
)
GRPC_NOT_STARTED: Final = _event(
    _PROCESS,
    "grpc-not-started",
    "critical",
    "The gRPC server could not start. Other protocols are served.",
    "The traceback has the reason. Correct it, and restart the broker.",
)
LOOP_BLOCKED: Final = _event(
    _PROCESS,
    "loop-blocked",
    "warning",
    "The broker worked on one thing for so long that others waited; the line says where.",
    "If it repeats, give it a faster processor or fewer partitions, and report where.",
)
PROCESS_STALLED: Final = _event(
    _PROCESS,
    "process-stalled",
    "warning",
    "The process did not run for a while: it got no processor, or waited for the disk.",
    "Look for other load, limits of the container, swapping, and a slow disk. Long stalls cost "
    "leaderships.",
)
FILE_LIMIT_LOW: Final = _event(
    _PROCESS,
    "file-limit-low",
    "warning",
    "The process may open few files: fewer clients can connect, or fewer processes of a node fit.",
    "Raise the limit: `ulimit -n`, or `LimitNOFILE` of systemd.",
)
PROCESS_ENDED: Final = _event(
    _PROCESS,
    "process-ended",
    "warning",
    "A process of a node (`processes`) ended, and is restarted or stays down as the line says.",
    "The lines of that process before have the reason. After SIGKILL look at the kernel's log "
    "(`dmesg`): the memory may have been too small.",
)
NODE_FAILED: Final = _event(
    _PROCESS,
    "node-failed",
    "critical",
    "A process of a node cannot work: it exited with a final error, or crashed again and again. "
    "The whole node stops with its exit code.",
    "Remedy what the lines of that process say, and start the node again.",
)
PROCESSES_EXCEED_CORES: Final = _event(
    _PROCESS,
    "processes-exceed-cores",
    "warning",
    "The node has more processes than it may use cores. They share them, which is not faster.",
    "Set `processes` to the number in the line, or `auto`.",
)
CONFIG_UNMET: Final = _event(
    _PROCESS,
    "config-unmet",
    "warning",
    "A setting is valid, but cannot be met with one broker only.",
    "Add brokers, or change the setting that the line names.",
)
LOG_LEVEL_CHANGED: Final = _event(
    _PROCESS,
    "log-level-changed",
    "info",
    "An operator changed the level of a component of the log, until the process ends.",
    "Set it back when the problem is found: `moldau broker log-level COMPONENT reset`.",
)
PLAY_FAULT: Final = _event(
    _PROCESS,
    "play-fault",
    "warning",
    "Somebody plays with this cluster: a link of the broker is cut, or its disk slowed down, on "
    "purpose; or that is over.",
    "End it when it is not wanted: `moldau cluster heal`.",
)
