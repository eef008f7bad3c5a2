"""Options that many commands share, their types, and completion of topic and group names."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import click

from moldau.cli.connection.current import current_properties, profile_address, properties_in
from moldau.cli.connection.options import connection_options
from moldau.cli.output import FORMATS
from moldau.model.errors import MoldauError

Properties = tuple[tuple[str, str], ...]
"""Values of -X and --config."""

if TYPE_CHECKING:
    from moldau.client.kafka.admin import Admin

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
        from moldau.client.addresses import with_localhost
        from moldau.client.errors import ClientError

        text = with_localhost(str(value))
        try:
            self.check(text)
        except ClientError as error:
            self.fail(f"{error}; write HOST:PORT", param, ctx)
        return text

    def check(self, addresses: str) -> None:
        """Raises ClientError."""
        from moldau.client.addresses import split_brokers

        split_brokers(addresses)


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Topic names for shell completion; empty if no broker responds."""
    names = _topic_names(str(ctx.params.get("brokers") or DEFAULT_BROKERS), ctx)
    shown = [name for name in names if incomplete.startswith("_") or not name.startswith("__")]
    return completions(incomplete, dict.fromkeys(shown, ""))


def _topic_names(brokers: str, ctx: click.Context) -> list[str]:
    from moldau.cli.connection.preflight import check_login
    from moldau.client.kafka.connect import probe

    try:
        properties = properties_in(ctx, ask=False)
        # Completion must not take longer than a second.
        probe(brokers, 0.5, extra=properties)
        check_login(brokers, properties)
    except MoldauError:
        return []
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from moldau.client.kafka.librdkafka_settings import admin_settings

    try:
        return sorted(
            AdminClient(admin_settings(brokers, properties)).list_topics(timeout=1.0).topics
        )
    except KafkaException:
        return []


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from moldau.client.kafka.connect import probe

    brokers = str(ctx.params.get("brokers") or DEFAULT_BROKERS)
    try:
        properties = properties_in(ctx, ask=False)
        probe(brokers, 0.5, extra=properties)
        names = [group.name for group in open_admin(brokers, tuple(properties.items())).groups()]
    except MoldauError:
        return []
    return completions(incomplete, dict.fromkeys(names, ""))


def completions(incomplete: str, names: Mapping[str, str]) -> list[Any]:
    """Those of the names, each with its help, that continue an incomplete word."""
    from click.shell_completion import CompletionItem

    return [
        CompletionItem(name, help=text)
        for name, text in names.items()
        if name.startswith(incomplete)
    ]


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
    return pairs_option("--set", "settings", help_text=help_text)


def config_option(function: _F) -> _F:
    return click.option(
        "--config",
        "config_file",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Configuration (.yaml, .toml, .json, .ini, .env, .properties); also MOLDAU_CONFIG.",
    )(function)


def timeout_option(default: str, help_text: str = "Give up after this.") -> Callable[[_F], _F]:
    return click.option(
        "--timeout", type=Duration(), default=default, show_default=True, help=help_text
    )


def partitions_option(function: _F) -> _F:
    return click.option(
        "-p",
        "--partition",
        "partitions",
        type=int,
        multiple=True,
        help="Only this partition; may be repeated.",
    )(function)


def address_option(
    *names: str, kind: ParamType[str], variable: str, default: str, help_text: str
) -> Callable[[_F], _F]:
    """Addresses of brokers, also from an environment variable; and how to connect to them."""
    option = click.option(
        *names,
        type=kind,
        envvar=variable,
        default=default,
        show_default=True,
        metavar="HOST:PORT[,…]",
        # Before the arguments, whose completion connects to this address.
        is_eager=True,
        callback=profile_address,
        help=f"{help_text}; also {variable}.",
    )

    def decorate(function: _F) -> _F:
        return connection_options(option(function))

    return decorate


def open_admin(brokers: str, properties: Properties) -> "Admin":
    """The admin client of a command with `brokers_option`."""
    from moldau.cli.connection.preflight import check_login
    from moldau.client.kafka.admin import Admin

    check_login(brokers, dict(properties))
    return Admin(brokers, dict(properties))


def brokers_option(function: _F) -> _F:
    """-b/--brokers, and -X for properties of librdkafka.

    `properties` also has what the options for TLS and users say; -X overrides it.
    """

    # When the command runs, not when its options are parsed: it may ask for a password.
    @functools.wraps(function)
    def run(*args: Any, properties: Properties, **kwargs: Any) -> Any:
        merged = (*current_properties().items(), *properties)
        return function(*args, properties=merged, **kwargs)

    option = pairs_option("-X", "--property", "properties", help_text="A librdkafka property")
    return plain_brokers_option(option(cast(_F, run)))


def plain_brokers_option(function: _F) -> _F:
    """-b/--brokers, for commands that do not use librdkafka."""
    return address_option(
        "-b",
        "--brokers",
        kind=Brokers(),
        variable="MOLDAU_BROKERS",
        default=DEFAULT_BROKERS,
        help_text="Kafka addresses of brokers",
    )(function)


def output_option(function: _F) -> _F:
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
    return click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")(function)


def topic_argument(function: _F) -> _F:
    return click.argument("topic", shell_complete=complete_topics)(function)
