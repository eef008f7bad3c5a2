"""The settings of each kind become options, and words on the command line become settings."""

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from pipeline_words import settings_from

from moldau.cli.pipeline.kind_options import kind_options
from moldau.cli.pipeline.kinds import parameters
from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.kinds import KINDS
from moldau.spark.pipelines.settings.archive import OFFSETS_PER_TRIGGER_DEFAULT
from moldau.spark.pipelines.spec import PipelineSettings

PAGES = Path(__file__).parents[3] / "docs" / "spark"
REQUIRED: dict[str, dict[str, Any]] = {
    "archive": {"topics": ("a",), "to": "/lake"},
    "compact": {"table": "/lake"},
    "replay": {"target": "t"},
    "aggregate": {"topics": ("a",), "sql": "SELECT 1"},
    "audit": {"topics": ("a",)},
}
WORDS = {
    "archive": "--topic a --to /lake",
    "compact": "--table /lake",
    "replay": "--to t",
    "aggregate": "--topic a --sql 'SELECT 1'",
    "audit": "--topic a",
}


def parsed(kind: str, words: str) -> Any:
    return settings_from(kind, shlex.split(words))


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_of_a_kind_has_an_option(kind: str) -> None:
    shared = {field.name for field in fields(PipelineSettings)}
    own = {field.name for field in fields(KINDS[kind])} - shared
    options = {each.name for each in parameters(kind_options(KINDS[kind]))}
    assert options - {"sql_file"} == own


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_out_is_as_the_settings_have_it(kind: str) -> None:
    expected = KINDS[kind](name="n", bootstrap="b:1", home="/nowhere/n", **REQUIRED[kind])
    assert parsed(kind, WORDS[kind]) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_examples_and_commands_of_the_page_are_what_a_kind_takes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("revenue.sql", "totals.sql"):
        (tmp_path / name).write_text("SELECT 1")
    page = re.findall(rf"^\$ (moldau pipeline run {kind} .*[^\\])$", _page(kind), re.M)
    for example in (*KINDS[kind].examples, *page):
        words = shlex.split(example.removesuffix(" -o json"))
        assert words[:4] == ["moldau", "pipeline", "run", kind]
        settings = settings_from(kind, words[4:])
        settings.check()
        assert (settings.kind, settings.name, settings.bootstrap) == (kind, "n", "b:1")
    assert len(page) == (5 if kind == "archive" else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_is_on_its_page(kind: str) -> None:
    options = [name for each in parameters(kind_options(KINDS[kind])) for name in each.opts]
    named = set(re.findall(r"`(--[\w-]+)", _page(kind)))
    assert [name for name in options if name not in named] == []


def _page(kind: str) -> str:
    return (PAGES / f"{kind}.md").read_text()


def test_an_archive_gets_all_that_the_command_line_says() -> None:
    settings = parsed(
        "archive",
        "--topic a --topic b --topic a --to /lake --format iceberg --storage catalog=sqlite:///c "
        "--decode json --schema x.json --dead-letter-topic bad --from latest --max-offsets 9",
    )
    assert settings.topics == ("a", "b")
    assert settings.storage == {"catalog": "sqlite:///c"}
    assert (settings.table_format, settings.decode) == ("iceberg", "json")
    assert settings.schema == "x.json"
    assert settings.source_options()["startingOffsets"] == "latest"
    assert settings.source_options()["maxOffsetsPerTrigger"] == "9"
    assert settings.dead == "bad"
    plain = parsed("archive", WORDS["archive"])
    assert plain.offsets_per_trigger_max == OFFSETS_PER_TRIGGER_DEFAULT


def test_a_replay_gets_all_options_of_the_command_line() -> None:
    found = parsed(
        "replay",
        "--topic a --topic b --topic a --to c --create --from-time -2h --to-time 1700000000000 "
        "--offsets 0:1-2 --offsets b/1:-9 --key x --no-keep-partitions "
        "--origin-headers --batch-rows 7 --times-rise",
    )
    assert (found.topics, found.target, found.create) == (("a", "b"), "c", True)
    assert (found.from_time, found.to_time, found.times_rise) == ("-2h", "1700000000000", True)
    assert (found.offsets, found.keys) == (("0:1-2", "b/1:-9"), ("x",))
    assert (found.keep_partitions, found.origin_headers, found.batch_rows) == (False, True, 7)
    plain = parsed("replay", "--table /lake --storage region=x --to c")
    assert (plain.table, plain.table_format, plain.storage) == ("/lake", "delta", {"region": "x"})
    assert (plain.keep_partitions, plain.batch_rows) == (None, 500_000)


@pytest.mark.parametrize(
    ("text", "size"), [("128M", 128 << 20), ("1g", 1 << 30), ("70000", 70_000), ("'64 KiB'", 65536)]
)
def test_sizes_have_units(text: str, size: int) -> None:
    found = parsed("compact", f"--table /lake --file-size {text} --clean 7d")
    assert (found.file_bytes, found.clean_seconds) == (size, 7 * 86400.0)
    assert parsed("compact", "--table /lake").file_bytes == 128 << 20


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="is not a valid size"):
        parsed("compact", "--table /lake --file-size large")


@pytest.mark.parametrize(
    ("kind", "words", "said"),
    [
        ("archive", "--max-offsets 0", "'0' is not an integer of at least 1"),
        ("archive", "--format csv", "'csv' is not one of 'delta', 'iceberg', 'parquet'"),
        ("compact", "--format parquet", "'parquet' is not one of 'delta', 'iceberg'"),
        ("audit", "--lag-max -1", "'-1' is not an integer of at least 0"),
        ("audit", "--undecodable-max 2", "'2' is not a number from 0 to 1"),
        ("audit", "--ignore offset", "'offset' is not one of 'key'"),
        ("audit", "--storage region", "'region' is not KEY=VALUE"),
    ],
)
def test_a_value_that_does_not_fit_its_option_is_refused(kind: str, words: str, said: str) -> None:
    with pytest.raises(click.BadParameter, match=said):
        parsed(kind, f"{WORDS[kind]} {words}")


def test_an_audit_of_a_table_names_its_format_and_storage() -> None:
    found = parsed(
        "audit",
        "--topic orders --topic returns --table s3://lake/orders --format delta "
        "--storage region=eu --group archive --through group",
    )
    found.check()
    assert found.topics == ("orders", "returns")
    assert (found.table, found.table_format) == ("s3://lake/orders", "delta")
    assert found.storage == {"region": "eu"}
    assert (found.groups, found.through) == (("archive",), "group")


def test_an_audit_of_a_copy_matches_by_pairs_of_terms() -> None:
    words = "--topic a --against-topic b --match key --match value"
    assert parsed("audit", words).match == ("key", "value")
    # Not distinct: each is one half of a pair.
    twice = parsed("audit", f"{words} --match-against key --match-against key")
    assert twice.match_against == ("key", "key")
    with pytest.raises(InvalidArgumentError, match="are pairs"):
        parsed("audit", f"{words} --match-against key").check()


@pytest.mark.parametrize(
    "words",
    [
        "--topic a",
        "--topic a --table /t --against-topic b",
        "--topic a --against-topic a",
        "--topic a --against-topic b --through group",
    ],
)
def test_what_does_not_fit_together_is_refused_with_a_word_about_the_option(words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"--|topic"):
        parsed("audit", words).check()
