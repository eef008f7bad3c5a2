"""Owns the data source `moldau` of Spark: which reader or writer serves which kind of query."""

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from moldau.client.errors import InvalidArgumentError
from moldau.spark.schema import column_names, ddl
from moldau.spark.source.read_options import parse_read_options, wants_headers


class MoldauDataSource(DataSource):
    """Topics as tables and streams: `spark.read.format("moldau")`, and the same for readStream.

    Options and columns are those of Spark's Kafka connector.
    """

    @classmethod
    def name(cls) -> str:
        return "moldau"

    def schema(self) -> str:
        return ddl(include_headers=wants_headers(self.options))

    def reader(self, schema: Any) -> DataSourceReader:
        from moldau.spark.source.batch import batch_reader

        self._check_schema(schema)
        return batch_reader(self.options)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        from moldau.spark.source.stream import StreamReader

        self._check_schema(schema)
        return StreamReader(parse_read_options(self.options, streaming=True))

    def _check_schema(self, schema: Any) -> None:
        names = column_names(include_headers=wants_headers(self.options))
        if schema.fieldNames() != names:
            raise InvalidArgumentError(
                f"a topic has the columns {', '.join(names)}; leave out .schema(…)",
                hint="take values apart with from_json or the helpers in moldau.spark.decode",
            )
