"""The command line of `aggregate` becomes its settings."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from moldau.cli import pipeline_aggregate
from moldau.cli.pipeline_common import Common
from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.aggregate.settings import AggregateSettings, check

COMMON = Common(name="sums", bootstrap="localhost:1", home="/nowhere")


def parsed(*words: str) -> AggregateSettings:
    found: list[Any] = []

    def take(**values: Any) -> None:
        found.append(pipeline_aggregate.settings(COMMON, **values))

    for option in reversed(pipeline_aggregate.OPTIONS):
        take = option(take)
    result = CliRunner().invoke(
        click.command()(take), list(words), standalone_mode=False, catch_exceptions=False
    )
    if result.exception is not None:
        raise result.exception
    assert isinstance(found[0], AggregateSettings)
    return found[0]


def test_options_become_settings(tmp_path: Path) -> None:
    sql = tmp_path / "query.sql"
    sql.write_text("SELECT 1")
    settings = parsed(
        *("--topic", "a", "--topic", "b", "--topic", "a", "--sql-file", str(sql)),
        *("--to-table", "/lake", "--format", "delta", "--storage", "endpoint=x"),
        *("--decode", "avro", "--schema", "s.avsc", "--watermark", "1 hour"),
    )
    check(settings)
    assert settings.topics == ("a", "b")
    assert settings.sql == "SELECT 1"
    assert (settings.table_format, dict(settings.storage)) == ("delta", {"endpoint": "x"})
    assert (settings.decode, settings.schema, settings.watermark) == ("avro", "s.avsc", "1 hour")


def test_what_is_left_out_is_as_the_settings_have_it() -> None:
    given = {"topics": ("a",), "sql": "SELECT 1", "to_topic": "t"}
    assert parsed("--topic", "a", "--sql", "SELECT 1", "--to", "t") == AggregateSettings(
        **COMMON.fields(), **given
    )


def test_there_is_one_query() -> None:
    with pytest.raises(InvalidArgumentError, match="--sql and --sql-file"):
        parsed("--topic", "a", "--to", "t")
