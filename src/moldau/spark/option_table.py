"""The table of all options and how each is supported; parsers and documentation use it.

It has the options of Spark's Kafka connector, the relevant ones of Kafka's clients, and new ones.
"""

import re
from enum import Enum, StrEnum
from typing import Final, NamedTuple

BOOTSTRAP: Final = "kafka.bootstrap.servers"


class Side(Enum):
    READ = "read"
    WRITE = "write"
    BOTH = "read, write"

    def covers(self, other: "Side") -> bool:
        return self is other or Side.BOTH in (self, other)


class OptionSupport(StrEnum):
    SAME = "as in the Kafka connector"
    OURS = "new here"
    NO_EFFECT = "accepted, no effect"
    REFUSED = "rejected, as by the connector"
    CANNOT = "rejected here"


class Option(NamedTuple):
    name: str
    side: Side
    support: OptionSupport
    note: str


# Side, support and names, then a note for the documentation.
_TABLE: Final = """
both same kafka.bootstrap.servers: addresses of brokers; required
both ours bootstrap.servers: the same
read same subscribe: topics, separated by commas; one of these three is required
read same subscribePattern: a regular expression for whole names; a stream finds new topics by it
read same assign: partitions: `{"orders": [0, 1]}`
read same startingOffsets: `earliest` (batch), `latest` (stream), or `{"orders": {"0": 23, "1":
  -2}}`: -2 is the earliest, -1 the latest offset. Only for a query without a checkpoint
read same startingTimestamp: the first record at or after a time in ms; overrides the next two
read same startingOffsetsByTimestamp: for each partition; overrides `startingOffsets`
read same startingOffsetsByTimestampStrategy: if no record is that recent: `error`, or `latest`
read same endingOffsets endingTimestamp endingOffsetsByTimestamp: for batch reads: where to end
read same maxOffsetsPerTrigger: upper limit of a micro-batch, over all partitions
read same minOffsetsPerTrigger: a micro-batch waits until this many offsets are available
read same maxTriggerDelay: but no longer than this (15m)
read same minPartitions: split large offset ranges until there are about this many tasks
read same maxRecordsPerPartition: split larger offset ranges
both same failOnDataLoss: `true`: fail if records were deleted before they were read, or if
  transactions of a decided batch were aborted
both same includeHeaders: add the column `headers`; writes always have it
read same kafka.isolation.level: `read_committed` skips records of open and aborted transactions
read ours isolation: the same
read ours groupId: commit the offsets of a stream for this group, after each micro-batch
read no_effect kafka.group.id: no consumer group is used for reading; see `groupId`
read no_effect groupIdPrefix: no consumer group is used for reading
read no_effect kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs: see
  `kafka.request.timeout.ms`
read same kafka.max.partition.fetch.bytes: size limit of a fetch (2 MiB); a task holds two
write same topic: for all rows; overrides the column `topic`
write ours exactlyOnce: default `true` for streams, `false` for batch writes
write ours txnAppId: for batch writes, with `txnVersion`: write this version once
write ours txnVersion: an integer from 0 on
write ours decisionsTopic: the topic with the commit decisions (`__moldau_spark_decisions`)
write ours writeTimestamp: `true` writes the column `timestamp` as the records' timestamps
write no_effect kafka.acks: always `all`
write same kafka.compression.type: `none`, `gzip`, `snappy`, `lz4` or `zstd`
write same kafka.batch.size: bytes of a batch before compression (512 KiB)
write same kafka.max.request.size: size limit of a request, and so of a row (1 MiB)
write same kafka.buffer.memory: bytes that a task may buffer (32 MiB)
write same kafka.transaction.timeout.ms: how long a transaction may stay open before brokers abort
  it; default: the longest that brokers allow, at most a day
write no_effect kafka.linger.ms: a batch is sent when it is full, or at the end of the task
write no_effect kafka.enable.idempotence: always on
both same kafka.request.timeout.ms: how long to retry before a query fails (60000)
both same kafka.client.id: the client name that brokers see (`moldau-spark`)
read refused kafka.auto.offset.reset: use `startingOffsets`
read refused kafka.enable.auto.commit: use `groupId`
read refused kafka.key.deserializer kafka.value.deserializer: keys and values are always bytes
write refused kafka.key.serializer kafka.value.serializer: keys and values are bytes or text
both refused kafka.interceptor.classes: needs Java classes, and this is not a Java client
write cannot kafka.partitioner.class kafka.partitioner.ignore.keys: use the column `partition`
write cannot kafka.transactional.id: transaction names are generated
both same kafka.security.protocol: `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL` (PLAINTEXT)
both same kafka.sasl.mechanism: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`
both same kafka.sasl.jaas.config: user name and password:
  `org.apache.kafka.common.security.plain.PlainLoginModule required username="…" password="…";`,
  for SCRAM `…scram.ScramLoginModule…`
both ours kafka.sasl.oauthbearer.token: a token, for `OAUTHBEARER`
both ours kafka.sasl.username kafka.sasl.password: instead of `kafka.sasl.jaas.config`
both same kafka.ssl.endpoint.identification.algorithm: `https` (the default) checks the host name
  of the certificate; empty: no check
both same kafka.ssl.enabled.protocols: `TLSv1.2`, `TLSv1.3`; older ones are ignored
both same kafka.ssl.truststore.type kafka.ssl.keystore.type: `PEM` or `PKCS12`; the file's content
  decides. `JKS` is rejected, with the command that converts it
both same kafka.ssl.truststore.location kafka.ssl.keystore.location: a file that the driver can read
both same kafka.ssl.truststore.password kafka.ssl.keystore.password: of a PKCS12 file
both same kafka.ssl.truststore.certificates: trusted CAs, in PEM; default: those of the system
both same kafka.ssl.keystore.certificate.chain: the client's certificate, in PEM
both same kafka.ssl.keystore.key: its private key, in PEM
both same kafka.ssl.key.password: of the private key
both ours kafka.ssl.ca.location kafka.ssl.certificate.location kafka.ssl.key.location: PEM files
both no_effect kafka.ssl.cipher.suites: OpenSSL and the broker negotiate one
both cannot kafka.ssl.engine.factory.class kafka.sasl.login.class
  kafka.sasl.login.callback.handler.class kafka.sasl.client.callback.handler.class: needs Java
  classes, and this is not a Java client
"""

OPTIONS: Final = tuple(
    Option(name, Side[side.upper()], OptionSupport[support.upper()], note)
    for head, note in re.findall(r"^(.+?): (.+)$", _TABLE.replace("\n  ", " "), re.MULTILINE)
    for side, support, *names in [head.split()]
    for name in names
)

_PAGE: Final = """\
# Options of `format("moldau")`

All options of Spark's Kafka connector, the relevant ones of Kafka's own clients, and those that are
new here. Names are case-insensitive. Other options that begin with `kafka.` have no effect and are
logged once; any other name is an error that suggests the nearest. `make docs` generates this page.

To move from the connector, change `format("kafka")` to `format("moldau")`. Other differences:

- A batch write needs `.mode("append")`. The connector also accepts `save()` without it; Spark does
  not allow that for Python data sources, and says so in its own error.
- Streams are written exactly once, so consumers must use `read_committed`; see `exactlyOnce`.
- SQL supports views, not tables: see [Reading topics](../spark/source.md#sql).
- `OAUTHBEARER`, `GSSAPI`, delegation tokens and JKS stores are not supported.
- Continuous processing (`trigger(continuous=…)`) does not exist for Python data sources.

| option | for | | |
|---|---|---|---|
"""


def names_of(side: Side) -> list[str]:
    """Spelled as in the documentation."""
    return [option.name for option in OPTIONS if option.side.covers(side)]


def render() -> str:
    """The page docs/reference/spark-options.md."""
    rows = (f"| `{o.name}` | {o.side.value} | {o.support} | {o.note} |\n" for o in OPTIONS)
    return _PAGE + "".join(rows)


if __name__ == "__main__":
    print(render(), end="")
