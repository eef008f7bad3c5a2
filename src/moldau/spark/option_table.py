"""Responsible for the table of options: those of Spark's Kafka connector, those of Kafka's clients
that matter here, and new ones; and what becomes of each. Parsers and documentation follow it.
"""

import re
from enum import Enum, StrEnum
from typing import Final, NamedTuple


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
    REFUSED = "refused, as the connector does"
    CANNOT = "refused here"


class Option(NamedTuple):
    name: str
    side: Side
    fate: OptionSupport
    note: str


# Side, fate and names, then what is said about them.
_TABLE: Final = """
both same kafka.bootstrap.servers: where brokers are; needed
both ours bootstrap.servers: the same
read same subscribe: topics, with commas; one of these three is needed
read same subscribePattern: a regular expression for whole names; a stream finds new topics by it
read same assign: partitions: `{"orders": [0, 1]}`
read same startingOffsets: `earliest` (batch), `latest` (stream), or `{"orders": {"0": 23, "1":
  -2}}`: -2 is the earliest, -1 the latest offset. Only for a query without a checkpoint
read same startingTimestamp: the first record at or after a time in ms; goes before the next two
read same startingOffsetsByTimestamp: for each partition; before `startingOffsets`
read same startingOffsetsByTimestampStrategy: where no record is that young: `error`, or `latest`
read same endingOffsets endingTimestamp endingOffsetsByTimestamp: for batches: where to end
read same maxOffsetsPerTrigger: the most that a batch of a stream reads, of all partitions together
read same minOffsetsPerTrigger: a batch of a stream waits for so much
read same maxTriggerDelay: but not for longer (15m)
read same minPartitions: split wide ranges until there are about so many tasks
read same maxRecordsPerPartition: split ranges that are wider
both same failOnDataLoss: `true`: stop when records are gone before they were read, or were aborted
  by others after they were decided for
both same includeHeaders: add the column `headers`; writes always have it
read same kafka.isolation.level: `read_committed`: without what is open, or was aborted
read ours isolation: the same
read ours groupId: commit the progress of a stream for that group, after each batch
read no_effect kafka.group.id: nothing is read by a group; `groupId` commits the progress for one
read no_effect groupIdPrefix: there are no groups that would have names
read no_effect kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs: see
  `kafka.request.timeout.ms`
read same kafka.max.partition.fetch.bytes: the most that one fetch brings (2 MiB); a task holds two
write same topic: for all rows; goes before the column of that name
write ours exactlyOnce: `true` for streams, `false` for tables: see below
write ours txnAppId: for tables, with `txnVersion`: write this version once
write ours txnVersion: a whole number from 0 on
write ours decisionsTopic: where is written what was decided (`__moldau_spark_decisions`)
write ours writeTimestamp: `true` takes the times of records from the column `timestamp`
write no_effect kafka.acks: always `all`
write same kafka.compression.type: `none`, `gzip`, `snappy`, `lz4` or `zstd`
write same kafka.batch.size: bytes of a batch before compression (512 KiB)
write same kafka.max.request.size: bytes of a request (1 MiB), and of a row at most
write same kafka.buffer.memory: what a task may hold back (32 MiB)
write same kafka.transaction.timeout.ms: how long a batch may take and be left open before brokers
  abort it; the longest that they allow, a day at most
write no_effect kafka.linger.ms: a batch waits until it is full, or the task at its end
write no_effect kafka.enable.idempotence: always
both same kafka.request.timeout.ms: how long brokers may be away before a query fails (60000)
both same kafka.client.id: the name that brokers see (`moldau-spark`)
read refused kafka.auto.offset.reset: use `startingOffsets`
read refused kafka.enable.auto.commit: use `groupId`
read refused kafka.key.deserializer kafka.value.deserializer: keys and values are always bytes
write refused kafka.key.serializer kafka.value.serializer: keys and values are bytes or text
both refused kafka.interceptor.classes: no Java is there to call them
write cannot kafka.partitioner.class kafka.partitioner.ignore.keys: use the column `partition`
write cannot kafka.transactional.id: transactions have names of their own
both same kafka.security.protocol: `PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL` (PLAINTEXT)
both same kafka.sasl.mechanism: `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`; no others
both same kafka.sasl.jaas.config: name and password:
  `org.apache.kafka.common.security.plain.PlainLoginModule required username="…" password="…";`,
  for SCRAM `…scram.ScramLoginModule…`
both ours kafka.sasl.username kafka.sasl.password: instead of `kafka.sasl.jaas.config`
both same kafka.ssl.endpoint.identification.algorithm: `https` (the default) checks that the
  certificate is one of the host; empty: no check
both same kafka.ssl.enabled.protocols: `TLSv1.2`, `TLSv1.3`; older ones are left out
both same kafka.ssl.truststore.type kafka.ssl.keystore.type: `PEM` or `PKCS12`; what a file holds
  goes before it. `JKS` is refused, with the command that converts it
both same kafka.ssl.truststore.location kafka.ssl.keystore.location: a file that the driver can read
both same kafka.ssl.truststore.password kafka.ssl.keystore.password: of a file in PKCS12
both same kafka.ssl.truststore.certificates: whom to trust, in PEM; else whom the system trusts
both same kafka.ssl.keystore.certificate.chain: the client's own certificate, in PEM
both same kafka.ssl.keystore.key: its key, in PEM
both same kafka.ssl.key.password: of the key
both ours kafka.ssl.ca.location kafka.ssl.certificate.location kafka.ssl.key.location: files in PEM
both no_effect kafka.ssl.cipher.suites: OpenSSL and the broker agree on one
both cannot kafka.ssl.engine.factory.class kafka.sasl.login.class
  kafka.sasl.login.callback.handler.class kafka.sasl.client.callback.handler.class: no Java is
  there to call it
"""

OPTIONS: Final = tuple(
    Option(name, Side[side.upper()], OptionSupport[fate.upper()], note)
    for head, note in re.findall(r"^(.+?): (.+)$", _TABLE.replace("\n  ", " "), re.MULTILINE)
    for side, fate, *names in [head.split()]
    for name in names
)

_PAGE: Final = """\
# Options of `format("moldau")`

All options of Spark's Kafka connector, those of Kafka's own clients that matter, and those that are
new here. Names may be written in any case. Other options that begin with `kafka.` are accepted and
told once, since they have no effect; any other name is an error that names the nearest. This page
is made by `make docs`.

To move from the connector, change `format("kafka")` to `format("moldau")`. What else is different:

- A table is written with `.mode("append")`. The connector takes `save()` without it; Spark lets no
  source in Python do so, and says that in its own error.
- Streams are written exactly once, so their readers have to read committed; see `exactlyOnce`.
- SQL has views, and no tables: see [Reading topics](../spark/source.md#sql).
- `OAUTHBEARER`, `GSSAPI`, delegation tokens and stores in JKS are refused.
- Continuous processing (`trigger(continuous=…)`) is not there for sources in Python.

| option | for | | |
|---|---|---|---|
"""


def names_of(side: Side) -> list[str]:
    """As the documentation writes them."""
    return [option.name for option in OPTIONS if option.side.covers(side)]


def render() -> str:
    """The page docs/reference/spark-options.md."""
    rows = (f"| `{o.name}` | {o.side.value} | {o.fate} | {o.note} |\n" for o in OPTIONS)
    return _PAGE + "".join(rows)


if __name__ == "__main__":
    print(render(), end="")
