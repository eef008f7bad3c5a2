"""Options of `run KIND` and `plan KIND`, derived from the settings of the kind.

The settings import neither Spark nor pyarrow: `--help` must be fast.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, Final, get_args, get_origin

import click

from moldau.cli.options import (
    Duration,
    Integer,
    KeyValue,
    Number,
    ParamType,
    complete_groups,
    complete_topics,
)
from moldau.spark.pipelines.spec import PipelineSettings

Option = Callable[..., Any]

_INTERVAL_UNITS: Final = {
    "ms": "milliseconds",
    "s": "seconds",
    "m": "minutes",
    "h": "hours",
    "d": "days",
}
_SIZE_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Interval(ParamType[str]):
    """A time as Spark writes it ('10 minutes'); 10m is accepted, too."""

    name = "interval"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)", str(value).strip())
        return f"{match[1]} {_INTERVAL_UNITS[match[2]]}" if match else str(value)


class Size(ParamType[int]):
    """Bytes: `134217728`, `128M`, `1G`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is not a valid size; write 128M or 1G", param, ctx)
        return int(match[1]) * _SIZE_UNITS[match[2]]


_TYPES: Final[dict[str, click.ParamType[Any]]] = {
    "AGE": Duration(),
    "FILE": click.Path(dir_okay=False),
    "INTERVAL": Interval(),
    "SHARE": Number(0, 1),
    "SIZE": Size(),
}
"""How the value of an option is parsed, by its metavar; others are text."""
_COMPLETIONS: Final = {"GROUP": complete_groups, "TOPIC": complete_topics}

SQL_FILE: Final = click.option(
    "--sql-file",
    type=click.Path(dir_okay=False, exists=True),
    metavar="FILE",
    help="A file with the query.",
)


def kind_options(settings_type: type[PipelineSettings]) -> Iterator[Option]:
    """The options of the settings that a kind adds; first those without a default."""
    shared = {each.name for each in fields(PipelineSettings)}
    added = [each for each in fields(settings_type) if each.name not in shared]
    for each in sorted(added, key=_has_default):
        yield setting_option(each)
        if each.name == "sql":
            yield SQL_FILE


def shared_option(name: str) -> Option:
    """The option of a setting that every kind has."""
    return setting_option(next(each for each in fields(PipelineSettings) if each.name == name))


def setting_option(setting: "Field[Any]") -> Option:
    """The option of a setting, by its type, its default and its `Flag`."""
    value_type, flag = get_args(setting.type)
    name = flag.option(setting.name)
    more: dict[str, Any] = {
        "help": flag.help,
        "metavar": flag.metavar or None,
        "required": not _has_default(setting) and not flag.is_optional,
        "type": _TYPES.get(flag.metavar),
        "shell_complete": _COMPLETIONS.get(flag.metavar),
    }
    if flag.choices:
        more["type"] = click.Choice([str(each) for each in flag.choices])
    elif flag.metavar == "N":
        more["type"] = Integer(flag.least)
    if value_type is bool:
        more["is_flag"] = True
    elif value_type == bool | None:
        name = f"{name}/--no-{name.removeprefix('--')}"
        more["default"] = None
    elif get_origin(value_type) is tuple:
        more |= {"help": f"{flag.help} May be repeated.", "multiple": True}
        # A topic or date that is named twice is read once; other values may come in pairs.
        more["callback"] = _distinct if flag.metavar in ("TOPIC", "YYYY-MM-DD") else None
    elif get_origin(value_type) is Mapping:
        more |= {"help": f"{flag.help}; may be repeated.", "multiple": True}
        more |= {"type": KeyValue(), "metavar": "KEY=VALUE", "callback": mapping}
    elif setting.default not in (MISSING, None) and "[default" not in flag.help:
        default = str(setting.default) if flag.choices else setting.default
        more |= {"default": default, "show_default": True}
    return click.option(name, setting.name, **more)


def _has_default(setting: "Field[Any]") -> bool:
    return setting.default is not MISSING or setting.default_factory is not MISSING


def mapping(ctx: click.Context, param: click.Parameter, value: Any) -> dict[str, str]:
    """Pairs as a dictionary; the last value of a key counts."""
    return dict(value)


def _distinct(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value))
