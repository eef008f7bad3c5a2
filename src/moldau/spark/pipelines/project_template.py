"""Owns the files of a new project of Spark Declarative Pipelines: what `init` writes.

They are the user's from then on. Broker and topics stand once, in spark-pipeline.yml.
"""

import json
from string import Template

SPEC_NAME = "spark-pipeline.yml"
OWN_FOLDER = ".spark"
"""In a project: catalog, checkpoints and tables. Not to be kept in version control."""

_SPEC = Template("""\
# A project of Spark Declarative Pipelines. Run it with: moldau pipeline run project FOLDER
name: $name
# Where Spark keeps how far its streams are. An address, so it changes if the folder moves.
storage: $storage
libraries:
  - glob:
      include: transformations/**
# Settings that the transformations can read, and others of Spark. All of them are texts.
configuration:
  spark.moldau.bootstrap: $bootstrap
  spark.moldau.source: $source
  spark.moldau.target: $target
""")

_READ = '''\
"""The source topic as a streaming table: each run adds what was written since the last one."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame


@dp.table(comment="Every message of the source topic, once")
def messages() -> DataFrame:
    return (
        spark.readStream.format("moldau")
        .option("kafka.bootstrap.servers", spark.conf.get("spark.moldau.bootstrap"))
        .option("subscribe", spark.conf.get("spark.moldau.source"))
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr(
            "CAST(key AS STRING) AS key",
            "CAST(value AS STRING) AS value",
            "partition",
            "offset",
            "timestamp",
        )
    )
'''

_COUNT = """\
-- Computed anew from the streaming table in each run; a table that any query can read.
CREATE MATERIALIZED VIEW messages_by_key AS
SELECT key, count(*) AS messages, max(timestamp) AS latest
FROM messages
GROUP BY key;
"""

_WRITE = '''\
"""What leaves for the target topic: each message once, as JSON with its length and origin."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame

dp.create_sink(
    name="target_topic",
    format="moldau",
    options={
        "kafka.bootstrap.servers": spark.conf.get("spark.moldau.bootstrap"),
        "topic": spark.conf.get("spark.moldau.target"),
    },
)


@dp.append_flow(target="target_topic")
def outgoing() -> DataFrame:
    return spark.readStream.table("messages").selectExpr(
        "key",
        "to_json(struct(value, length(value) AS length, partition, offset)) AS value",
    )
'''

_README = Template("""\
# $name

A project of Spark Declarative Pipelines that reads the topic `$source` and writes the topic
`$target`. `moldau pipeline run project FOLDER` runs it; `plan` instead of `run` only checks it.

| | |
|---|---|
| `spark-pipeline.yml` | name, broker and topics |
| `transformations/read_source.py` | the topic as a streaming table, `messages` |
| `transformations/count_by_key.sql` | a materialised view on it, `messages_by_key` |
| `transformations/write_target.py` | the sink that writes to the target topic, exactly once |
| `.spark/` | made by runs: catalog, tables, checkpoints |

A run takes what is there, and ends. The next one goes on where it ended. A full refresh forgets how
far the streams were and computes everything again: what it writes to the target topic is then there
twice.
""")


def files(*, name: str, storage: str, bootstrap: str, source: str, target: str) -> dict[str, str]:
    """Text by path within the project."""
    # JSON's texts are YAML's, whatever is in them.
    quoted = {
        key: json.dumps(value)
        for key, value in {
            "name": name,
            "storage": storage,
            "bootstrap": bootstrap,
            "source": source,
            "target": target,
        }.items()
    }
    return {
        SPEC_NAME: _SPEC.substitute(quoted),
        "transformations/read_source.py": _READ,
        "transformations/count_by_key.sql": _COUNT,
        "transformations/write_target.py": _WRITE,
        "README.md": _README.substitute(name=name, source=source, target=target),
        ".gitignore": f"{OWN_FOLDER}/\n__pycache__/\n",
    }
