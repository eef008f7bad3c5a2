"""Owns the table of options: those of Spark's Kafka connector, those of Kafka's clients that matter
here, and new ones; and what becomes of each. Parsers and documentation follow it.
"""

from collections.abc import Iterator
from enum import Enum, StrEnum
from typing import Final, NamedTuple


class Side(Enum):
    READ = "read"
    WRITE = "write"
    BOTH = "read, write"

    def covers(self, other: "Side") -> bool:
        return self is other or Side.BOTH in (self, other)


class Fate(StrEnum):
    SAME = "as in the Kafka connector"
    OURS = "new here"
    NO_EFFECT = "accepted, no effect"
    REFUSED = "refused, as the connector does"
    CANNOT = "refused here"


class Option(NamedTuple):
    name: str
    side: Side
    fate: Fate
    note: str


def _options() -> Iterator[Option]:
    same, ours, nothing = Fate.SAME, Fate.OURS, Fate.NO_EFFECT
    refused, cannot = Fate.REFUSED, Fate.CANNOT
    read, write, both = Side.READ, Side.WRITE, Side.BOTH
    yield Option("kafka.bootstrap.servers", both, same, "where brokers are; needed")
    yield Option("bootstrap.servers", both, ours, "the same")
    yield Option("subscribe", read, same, "topics, with commas; one of these three is needed")
    yield Option(
        "subscribePattern",
        read,
        same,
        "a regular expression for whole names, looked at anew while a stream runs",
    )
    yield Option("assign", read, same, 'partitions: `{"orders": [0, 1]}`')
    yield Option(
        "startingOffsets",
        read,
        same,
        '`earliest` (batch), `latest` (stream), or `{"orders": {"0": 23, "1": -2}}`: -2 is the '
        "earliest, -1 the latest offset. Only for a query without a checkpoint",
    )
    yield Option(
        "startingTimestamp",
        read,
        same,
        "the first record at or after a time in ms, in all partitions; goes before the next two",
    )
    yield Option(
        "startingOffsetsByTimestamp", read, same, "for each partition; before `startingOffsets`"
    )
    yield Option(
        "startingOffsetsByTimestampStrategy",
        read,
        same,
        "where no record is that young: `error`, or `latest`",
    )
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        yield Option(name, read, same, "for batches: before which offset or time to end")
    yield Option(
        "maxOffsetsPerTrigger",
        read,
        same,
        "the most that a batch of a stream reads, shared out by what waits in each partition",
    )
    yield Option("minOffsetsPerTrigger", read, same, "a batch of a stream waits for so much")
    yield Option("maxTriggerDelay", read, same, "but not for longer (15m)")
    yield Option(
        "minPartitions", read, same, "split wide ranges until there are about so many tasks"
    )
    yield Option("maxRecordsPerPartition", read, same, "split ranges that are wider")
    yield Option(
        "failOnDataLoss",
        both,
        same,
        "`true`: stop when records are gone before they were read, or were aborted by others "
        "after they were decided for",
    )
    yield Option("includeHeaders", both, same, "add the column `headers`; writes always have it")
    yield Option(
        "kafka.isolation.level",
        read,
        same,
        "`read_committed` leaves out what transactions aborted, and waits for open ones",
    )
    yield Option("isolation", read, ours, "the same")
    yield Option(
        "groupId", read, ours, "commit the progress of a stream for that group, after each batch"
    )
    yield Option(
        "kafka.group.id",
        read,
        nothing,
        "nothing is read as a member of a group; `groupId` commits the progress for one",
    )
    yield Option("groupIdPrefix", read, nothing, "there are no groups that would have names")
    yield Option("kafkaConsumer.pollTimeoutMs", read, nothing, "see `kafka.request.timeout.ms`")
    for name in ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs"):
        yield Option(name, read, nothing, "asked again until `kafka.request.timeout.ms` has passed")
    yield Option(
        "kafka.max.partition.fetch.bytes",
        read,
        same,
        "the most that one fetch brings (2 MiB); a task holds two",
    )
    yield Option("topic", write, same, "for all rows; goes before the column of that name")
    yield Option("exactlyOnce", write, ours, "`true` for streams, `false` for tables: see below")
    yield Option("txnAppId", write, ours, "for tables, with `txnVersion`: write this version once")
    yield Option("txnVersion", write, ours, "a whole number from 0 on")
    yield Option(
        "decisionsTopic",
        write,
        ours,
        "where is written what was decided (`__moldau_spark_decisions`)",
    )
    yield Option(
        "writeTimestamp",
        write,
        ours,
        "`true` takes the times of records from the column `timestamp`, which the connector "
        "leaves out",
    )
    yield Option(
        "kafka.acks",
        write,
        same,
        "`all`, `1` or `0`; what is written exactly once is written with `all`",
    )
    yield Option("kafka.compression.type", write, same, "`none`, `gzip`, `snappy`, `lz4` or `zstd`")
    yield Option("kafka.batch.size", write, same, "bytes of a batch before compression (512 KiB)")
    yield Option(
        "kafka.max.request.size",
        write,
        same,
        "bytes of a request (1 MiB), and of a row at most",
    )
    yield Option("kafka.buffer.memory", write, same, "what a task may hold back (32 MiB)")
    yield Option(
        "kafka.transaction.timeout.ms",
        write,
        same,
        "how long a batch may take and be left open before brokers abort it; the longest that they "
        "allow, a day at most",
    )
    yield Option(
        "kafka.linger.ms", write, nothing, "a batch waits until it is full, or the task at its end"
    )
    yield Option(
        "kafka.enable.idempotence", write, nothing, "always, unless `kafka.acks` is not `all`"
    )
    yield Option(
        "kafka.request.timeout.ms",
        both,
        same,
        "how long brokers may be away before a task or the commit fails (60000)",
    )
    yield Option("kafka.client.id", both, same, "the name that brokers see (`moldau-spark`)")
    yield Option("kafka.auto.offset.reset", read, refused, "use `startingOffsets`")
    yield Option("kafka.enable.auto.commit", read, refused, "use `groupId`")
    for word in ("key", "value"):
        yield Option(
            f"kafka.{word}.deserializer", read, refused, "keys and values are always bytes"
        )
        yield Option(
            f"kafka.{word}.serializer", write, refused, "keys and values are bytes or text"
        )
    yield Option("kafka.interceptor.classes", both, refused, "no Java is there to call them")
    yield Option("kafka.partitioner.class", write, cannot, "name the partition: column `partition`")
    yield Option(
        "kafka.partitioner.ignore.keys", write, cannot, "name the partition: column `partition`"
    )
    yield Option("kafka.transactional.id", write, cannot, "transactions have names of their own")
    yield from _security()


def _security() -> Iterator[Option]:
    same, ours, nothing, cannot = Fate.SAME, Fate.OURS, Fate.NO_EFFECT, Fate.CANNOT

    def option(name: str, fate: Fate, note: str) -> Option:
        return Option(f"kafka.{name}", Side.BOTH, fate, note)

    yield option(
        "security.protocol", same, "`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL` (PLAINTEXT)"
    )
    yield option("sasl.mechanism", same, "`PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`; no others")
    yield option(
        "sasl.jaas.config",
        same,
        "name and password: `org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="…" password="…";`, for SCRAM `…scram.ScramLoginModule…`',
    )
    for word in ("username", "password"):
        yield option(f"sasl.{word}", ours, "instead of `kafka.sasl.jaas.config`, as in librdkafka")
    yield option(
        "ssl.endpoint.identification.algorithm",
        same,
        "`https` (the default) checks that the certificate is one of the host; empty: no check",
    )
    yield option("ssl.enabled.protocols", same, "`TLSv1.2`, `TLSv1.3`; older ones are left out")
    for store in ("truststore", "keystore"):
        yield option(
            f"ssl.{store}.type",
            same,
            "`PEM` or `PKCS12`; what a file holds goes before it. Stores of Java's own format "
            "(`JKS`) are refused, with the command that converts them",
        )
        yield option(
            f"ssl.{store}.location", same, "the file; read by the driver, and sent to the tasks"
        )
        yield option(f"ssl.{store}.password", same, "of a file in PKCS12")
    yield option(
        "ssl.truststore.certificates", same, "whom to trust, in PEM; else whom the system trusts"
    )
    yield option("ssl.keystore.certificate.chain", same, "the client's own certificate, in PEM")
    yield option("ssl.keystore.key", same, "its key, in PEM")
    yield option("ssl.key.password", same, "of the key")
    for name in ("ca", "certificate", "key"):
        yield option(f"ssl.{name}.location", ours, "a file in PEM, as in librdkafka")
    yield option("ssl.cipher.suites", nothing, "OpenSSL and the broker agree on one")
    for name in (
        *("ssl.engine.factory.class", "sasl.login.class", "sasl.login.callback.handler.class"),
        "sasl.client.callback.handler.class",
    ):
        yield option(name, cannot, "no Java is there to call it")


OPTIONS: Final = tuple(_options())


def names_of(side: Side) -> list[str]:
    """As the documentation writes them."""
    return [option.name for option in OPTIONS if option.side.covers(side)]


def render() -> str:
    """The page docs/reference/spark-options.md."""
    lines = [
        '# Options of `format("moldau")`',
        "",
        "All options of Spark's Kafka connector, those of Kafka's own clients that matter, and",
        "those that are new here. Names may be written in any case. Other options that begin with",
        "`kafka.` are accepted and told once, since they have no effect; any other name is an",
        "error that names the nearest. This page is made by `make docs`.",
        "",
        'To move from the connector, change `format("kafka")` to `format("moldau")`. What else is',
        "different:",
        "",
        '- A table is written with `.mode("append")`. The connector takes `save()` without it;',
        "  Spark lets no source in Python do so, and says that in its own error.",
        "- Streams are written exactly once, so their readers have to read committed; see",
        "  `exactlyOnce`.",
        "- SQL has views, and no tables: see [Reading topics](../spark/source.md#sql).",
        "- `OAUTHBEARER`, `GSSAPI`, delegation tokens and stores in JKS are refused.",
        "- Continuous processing (`trigger(continuous=…)`) is not there for sources in Python.",
        "",
        "| option | for | | |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{option.name}` | {option.side.value} | {option.fate} | {option.note} |"
        for option in OPTIONS
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(render(), end="")
