"""The Spark data source `moldau`: returns the reader or writer for each kind of query."""

from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from moldau.client.errors import InvalidArgumentError
from moldau.spark.hints import shows_hints
from moldau.spark.options import VIEW_HINT
from moldau.spark.schema import columns, ddl
from moldau.spark.sink.columns import check_columns
from moldau.spark.sink.write_options import WriteOptions, parse_write_options
from moldau.spark.source.read_options import parse_read_options, wants_headers


class MoldauDataSource(DataSource):
    """Topics as tables and streams: `spark.read.format("moldau")`, and the same for readStream,
    write and writeStream.

    Options and columns are those of Spark's Kafka connector.
    """

    @classmethod
    def name(cls) -> str:
        return "moldau"

    @shows_hints()
    def schema(self) -> str:
        if "provider" in self.options:
            # Only set for a catalog table. Spark passes its options when the table is created,
            # but not when it is read or written.
            raise InvalidArgumentError(
                "CREATE TABLE … USING moldau is not supported: Spark does not pass a table's "
                "options to Python data sources, so the table could not be read",
                hint=VIEW_HINT,
            )
        return ddl(include_headers=wants_headers(self.options))

    @shows_hints()
    def reader(self, schema: Any) -> DataSourceReader:
        from moldau.spark.source.readers import batch_reader

        self._check_schema(schema)
        return batch_reader(self.options)

    @shows_hints()
    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        from moldau.spark.source.readers import StreamReader

        self._check_schema(schema)
        return StreamReader(parse_read_options(self.options, streaming=True))

    @shows_hints()
    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        from moldau.spark.sink.writers import BatchWriter

        if overwrite:
            raise InvalidArgumentError(
                'a topic cannot be overwritten: use .mode("append"), or INSERT INTO',
                hint="to empty a topic, delete it and create it again: moldau topic delete",
            )
        return BatchWriter(self._write_options(schema, streaming=False))

    @shows_hints()
    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from moldau.spark.sink.writers import StreamWriter

        return StreamWriter(self._write_options(schema, streaming=True))

    def _write_options(self, schema: Any, *, streaming: bool) -> WriteOptions:
        options = parse_write_options(self.options, streaming=streaming)
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        check_columns(types, topic=options.topic, takes_timestamps=options.takes_timestamps)
        return options

    def _check_schema(self, schema: Any) -> None:
        names = [name for name, _ in columns(include_headers=wants_headers(self.options))]
        if schema.fieldNames() != names:
            raise InvalidArgumentError(
                f"the columns of a topic are {', '.join(names)}; remove .schema(…)",
                hint="decode values with from_json or with moldau.spark.decode",
            )
