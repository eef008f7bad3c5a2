"""The command line of replays and compactions."""

import re
import shlex
from pathlib import Path

import click
import pytest
from pipeline_words import settings_from

from moldau.cli.pipeline import compact, replay
from moldau.cli.pipeline.kinds import _parameters

ROOT = Path(__file__).parents[3]
MODULES = {"replay": replay, "compact": compact}


@pytest.mark.parametrize("kind", MODULES)
def test_examples_are_what_the_kind_takes(kind: str) -> None:
    module = MODULES[kind]
    assert len(module.EXAMPLES) == 3
    for example in module.EXAMPLES:
        words = shlex.split(example)
        assert words[:4] == ["moldau", "pipeline", "run", kind]
        settings = settings_from(kind, words[4:])
        settings.check()
        assert (settings.kind, settings.name, settings.bootstrap) == (kind, "n", "b:1")


@pytest.mark.parametrize("kind", MODULES)
def test_every_option_is_on_its_page(kind: str) -> None:
    page = (ROOT / "docs" / "spark" / f"{kind}.md").read_text()
    options = [name for each in _parameters(MODULES[kind].OPTIONS) for name in each.opts]
    named = set(re.findall(r"`(--[\w-]+)", page))
    assert [name for name in options if name not in named] == []


def test_a_replay_is_told_all_that_the_command_line_says() -> None:
    words = (
        "--topic a --topic b --topic a --to c --create --from-time -2h --to-time 1700000000000 "
        "--offsets 0:1-2 --offsets b/1:-9 --key x --no-keep-partitions "
        "--origin-headers --batch-rows 7 --times-rise"
    )
    found = settings_from("replay", words.split())
    assert (found.topics, found.target, found.create) == (("a", "b"), "c", True)
    assert (found.from_time, found.to_time, found.times_rise) == ("-2h", "1700000000000", True)
    assert (found.offsets, found.keys) == (("0:1-2", "b/1:-9"), ("x",))
    assert (found.keep_partitions, found.origin_headers, found.batch_rows) == (False, True, 7)
    plain = settings_from("replay", ["--table", "/lake", "--storage", "region=x", "--to", "c"])
    assert (plain.table, plain.table_format, plain.storage) == ("/lake", "delta", {"region": "x"})
    assert (plain.keep_partitions, plain.batch_rows) == (None, 500_000)


@pytest.mark.parametrize(
    ("text", "size"), [("128M", 128 << 20), ("1g", 1 << 30), ("70000", 70_000), ("64 KiB", 65536)]
)
def test_sizes_have_units(text: str, size: int) -> None:
    words = ["--table", "/lake", "--file-size", text, "--clean", "7d"]
    found = settings_from("compact", words)
    assert (found.file_bytes, found.clean_seconds) == (size, 7 * 86400.0)
    assert settings_from("compact", ["--table", "/lake"]).file_bytes == 128 << 20


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="is not a valid size"):
        settings_from("compact", ["--table", "/lake", "--file-size", "large"])
