"""The command line of `aggregate` becomes its settings."""

from pathlib import Path

import pytest
from pipeline_words import settings_from

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.settings.aggregate import AggregateSettings


def parsed(*words: str) -> AggregateSettings:
    found = settings_from("aggregate", words)
    assert isinstance(found, AggregateSettings)
    return found


def test_options_become_settings(tmp_path: Path) -> None:
    sql = tmp_path / "query.sql"
    sql.write_text("SELECT 1")
    settings = parsed(
        *("--topic", "a", "--topic", "b", "--topic", "a", "--sql-file", str(sql)),
        *("--to-table", "/lake", "--format", "delta", "--storage", "endpoint=x"),
        *("--decode", "avro", "--schema", "s.avsc", "--watermark", "1 hour"),
    )
    settings.check()
    assert settings.topics == ("a", "b")
    assert settings.sql == "SELECT 1"
    assert (settings.table_format, dict(settings.storage)) == ("delta", {"endpoint": "x"})
    assert (settings.decode, settings.schema, settings.watermark) == ("avro", "s.avsc", "1 hour")


def test_there_is_one_query() -> None:
    with pytest.raises(InvalidArgumentError, match="--sql or --sql-file"):
        parsed("--topic", "a", "--to", "t")
