"""Owns the options that many commands share, their types, and the completion of topic names."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from moldau.cli.output import FORMATS

Properties = tuple[tuple[str, str], ...]
"""What -X and --config collect."""

# Generic for the type checker only: not so in every version of click that we support.
if TYPE_CHECKING:
    _FloatParam = click.ParamType[float]
    _PairParam = click.ParamType[tuple[str, str]]
    _TextParam = click.ParamType[str]
else:
    _FloatParam = _PairParam = _TextParam = click.ParamType

DEFAULT_BROKERS = "localhost:9092"

_F = TypeVar("_F", bound=Callable[..., Any])

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


class Duration(_FloatParam):
    """A time in seconds: `5`, `500ms`, `2m`."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)", str(value).strip())
        if match is None:
            self.fail(f"{value!r} is no duration; write 5s, 500ms or 2m", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


class KeyValue(_PairParam):
    """KEY=VALUE."""

    name = "key=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is not KEY=VALUE", param, ctx)
        return key, text


class Brokers(_TextParam):
    """HOST:PORT[,HOST:PORT…], checked before anything is tried with it."""

    name = "brokers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from moldau.client.addresses import split_brokers
        from moldau.client.errors import ClientError

        try:
            split_brokers(str(value))
        except ClientError as error:
            self.fail(f"{error}; {error.hint}", param, ctx)
        return str(value)


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Names for the tab key: quick, and silent where no broker answers."""
    names = _topic_names(str(ctx.params.get("brokers") or DEFAULT_BROKERS))
    shown = [name for name in names if incomplete.startswith("_") or not name.startswith("__")]
    return _items(shown, incomplete)


def _topic_names(brokers: str) -> list[str]:
    from moldau.client.errors import ClientError
    from moldau.client.kafka.connect import probe

    try:
        # A second is as long as a person waits for the tab key.
        probe(brokers, 0.5)
    except ClientError:
        return []
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from moldau.client.kafka.librdkafka_settings import admin_settings

    try:
        return sorted(AdminClient(admin_settings(brokers)).list_topics(timeout=1.0).topics)
    except KafkaException:
        return []


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Group names for the tab key."""
    from moldau.client.errors import ClientError
    from moldau.client.kafka.connect import probe

    brokers = str(ctx.params.get("brokers") or DEFAULT_BROKERS)
    try:
        probe(brokers, 0.5)
        from moldau.client.kafka.admin import Admin

        names = [group.name for group in Admin(brokers).groups()]
    except ClientError:
        return []
    return _items(names, incomplete)


def _items(names: list[str], incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def brokers_option(function: _F) -> _F:
    """-b/--brokers, and -X for what librdkafka has and we have no option for."""
    function = click.option(
        "-X",
        "--property",
        "properties",
        type=KeyValue(),
        multiple=True,
        metavar="KEY=VALUE",
        help="A librdkafka property; may be repeated.",
    )(function)
    return plain_brokers_option(function)


def plain_brokers_option(function: _F) -> _F:
    """-b/--brokers, for commands that use no librdkafka."""
    return click.option(
        "-b",
        "--brokers",
        type=Brokers(),
        envvar="MOLDAU_BROKERS",
        default=DEFAULT_BROKERS,
        show_default=True,
        metavar="HOST:PORT[,…]",
        is_eager=True,
        help="Where to connect; also MOLDAU_BROKERS.",
    )(function)


def output_option(function: _F) -> _F:
    """-o/--output."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        default="table",
        show_default=True,
        help="How to print it.",
    )(function)


def yes_option(function: _F) -> _F:
    """-y/--yes."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(function)


def topic_argument(function: _F) -> _F:
    """TOPIC, completed from the broker."""
    return click.argument("topic", shell_complete=complete_topics)(function)
