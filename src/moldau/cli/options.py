"""Options that many commands share, their types, and completion of topic and group names."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from moldau.cli.output import FORMATS

Properties = tuple[tuple[str, str], ...]
"""Values of -X and --config."""

if TYPE_CHECKING:
    ParamType: TypeAlias = click.ParamType
else:

    class ParamType(click.ParamType):
        """Generic at runtime, too: not every supported version of click is."""

        def __class_getitem__(cls, item: object) -> type:
            return cls


DEFAULT_BROKERS = "localhost:9092"

_F = TypeVar("_F", bound=Callable[..., Any])

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


class Duration(ParamType[float]):
    """A time in seconds: `5`, `500ms`, `2m`."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return float(value)
        match = _DURATION.fullmatch(str(value).strip())
        if match is None:
            self.fail(
                f"{value!r} is not a valid duration; write 500ms, 30s, 5m, 2h or 7d", param, ctx
            )
        return float(match[1]) * _SECONDS[match[2]]


class Integer(click.IntRange):
    """An integer; errors name the bounds."""

    name = "n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is not an integer{_bounds(self.min, self.max)}", param, ctx)


class Number(click.FloatRange):
    """A number; errors name the bounds."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is not a number{_bounds(self.min, self.max)}", param, ctx)


def _bounds(least: float | None, most: float | None) -> str:
    if most is None:
        return "" if least is None else f" of at least {least}"
    return f" from {least} to {most}"


class KeyValue(ParamType[tuple[str, str]]):
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


class Brokers(ParamType[str]):
    """HOST:PORT[,HOST:PORT…], where :PORT is a port of localhost."""

    name = "brokers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from moldau.client.addresses import split_brokers, with_localhost
        from moldau.client.errors import ClientError

        text = with_localhost(str(value))
        try:
            split_brokers(text)
        except ClientError as error:
            self.fail(f"{error}; write HOST:PORT", param, ctx)
        return text


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Topic names for shell completion; empty if no broker responds."""
    names = _topic_names(str(ctx.params.get("brokers") or DEFAULT_BROKERS))
    shown = [name for name in names if incomplete.startswith("_") or not name.startswith("__")]
    return _items(shown, incomplete)


def _topic_names(brokers: str) -> list[str]:
    from moldau.client.errors import ClientError
    from moldau.client.kafka.connect import probe

    try:
        # Completion must not take longer than a second.
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
    """Group names for shell completion."""
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


def pairs_option(*names: str, help_text: str, **more: Any) -> Callable[[_F], _F]:
    """KEY=VALUE, which may be repeated."""
    return click.option(
        *names,
        type=KeyValue(),
        multiple=True,
        metavar="KEY=VALUE",
        help=f"{help_text}; may be repeated.",
        **more,
    )


def set_option(help_text: str) -> Callable[[_F], _F]:
    """--set, for settings of a broker."""
    return pairs_option("--set", "settings", help_text=help_text)


def config_option(function: _F) -> _F:
    """--config, the configuration file of a broker."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Configuration (.yaml, .toml, .json, .ini, .env, .properties); also MOLDAU_CONFIG.",
    )(function)


def timeout_option(default: str) -> Callable[[_F], _F]:
    """--timeout of a command that waits."""
    return click.option(
        "--timeout", type=Duration(), default=default, show_default=True, help="Give up after this."
    )


def brokers_option(function: _F) -> _F:
    """-b/--brokers, and -X for properties of librdkafka."""
    option = pairs_option("-X", "--property", "properties", help_text="A librdkafka property")
    return plain_brokers_option(option(function))


def plain_brokers_option(function: _F) -> _F:
    """-b/--brokers, for commands that do not use librdkafka."""
    return click.option(
        "-b",
        "--brokers",
        type=Brokers(),
        envvar="MOLDAU_BROKERS",
        default=DEFAULT_BROKERS,
        show_default=True,
        metavar="HOST:PORT[,…]",
        is_eager=True,
        help="Kafka addresses of brokers; also MOLDAU_BROKERS.",
    )(function)


def output_option(function: _F) -> _F:
    """-o/--output."""
    return _output_option(FORMATS)(function)


def document_output_option(function: _F) -> _F:
    """-o/--output, for a result without a name."""
    return _output_option(tuple(name for name in FORMATS if name != "name"))(function)


def _output_option(formats: Sequence[str]) -> Callable[[_F], _F]:
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default="table",
        show_default=True,
        help="Output format.",
    )


def yes_option(function: _F) -> _F:
    """-y/--yes."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")(function)


def topic_argument(function: _F) -> _F:
    """TOPIC, with completion."""
    return click.argument("topic", shell_complete=complete_topics)(function)
