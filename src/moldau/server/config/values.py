"""Parses and formats single values: suffixes, bounds, choices, addresses."""

import re
from enum import StrEnum

from moldau.model.log_levels import ComponentLevels
from moldau.model.secret import Secret
from moldau.model.topology import Endpoint
from moldau.server.config.keys import Key
from moldau.server.config.listeners import parse_listeners
from moldau.server.config.scalars import (
    BadValue,
    parse_address,
    parse_bool,
    parse_choice,
    parse_component_levels,
    parse_processes,
)
from moldau.server.config.schema import Processes
from moldau.server.config.security_schema import Listeners
from moldau.server.config.setting import Unit
from moldau.server.config.units import (
    DAY_MS,
    GIB,
    HOUR_MS,
    KIB,
    MIB,
    MINUTE_MS,
    SECOND_MS,
    UNLIMITED,
)

_NUMBER = re.compile(r"(?P<number>[+-]?\d[\d_]*(?:\.\d+)?)\s*(?P<suffix>[A-Za-zµ]*)")
_NOTHING = frozenset({"", "null", "none", "~"})

_DURATIONS_MS = {
    "ms": 1,
    "s": SECOND_MS,
    "m": MINUTE_MS,
    "min": MINUTE_MS,
    "h": HOUR_MS,
    "d": DAY_MS,
    "w": 7 * DAY_MS,
}
_SIZES = {
    "b": 1,
    "k": KIB,
    "kib": KIB,
    "kb": 1000,
    "m": MIB,
    "mib": MIB,
    "mb": 1000**2,
    "g": GIB,
    "gib": GIB,
    "gb": 1000**3,
    "t": 1024 * GIB,
    "tib": 1024 * GIB,
    "tb": 1000**4,
}


def parse_value(key: Key, raw: object) -> object:
    """The typed value of a setting from a file, a variable or a flag."""
    if key.type is Listeners:
        return parse_listeners(raw)
    if key.optional and (raw is None or (isinstance(raw, str) and raw.strip().lower() in _NOTHING)):
        return None
    if raw is None or isinstance(raw, dict | list):
        raise BadValue(f"must be {describe_type(key)}")
    if isinstance(raw, key.type) and not (key.type is int and isinstance(raw, bool)):
        value: object = raw
    elif key.type is bool:
        value = parse_bool(raw)
    elif key.type is int:
        value = _parse_number(key.setting.unit, raw)
    elif key.type is Processes:
        value = parse_processes(raw)
    elif key.type is Endpoint:
        value = parse_address(raw)
    elif issubclass(key.type, StrEnum):
        value = parse_choice(key.type, raw)
    elif key.type is ComponentLevels:
        value = parse_component_levels(raw)
    elif key.type is Secret:
        value = Secret(_parse_text(raw))
    else:
        value = _parse_text(raw)
    if isinstance(value, str) and not value.strip():
        raise BadValue("must not be empty")
    if isinstance(value, int) and not isinstance(value, bool):
        _check_bounds(key, value)
    return value


def _parse_text(raw: object) -> str:
    if isinstance(raw, bool | float):
        raise BadValue("must be a text")
    return str(raw)


def _parse_number(unit: Unit, raw: object) -> int:
    if isinstance(raw, bool):
        raise BadValue(f"must be {_UNIT_TEXT[unit]}")
    match = _NUMBER.fullmatch(str(raw).strip())
    if match is None:
        raise BadValue(f"must be {_UNIT_TEXT[unit]}")
    suffix = match["suffix"].lower()
    if not suffix:
        factor, divisor = 1, 1
    elif unit is Unit.BYTES and suffix in _SIZES:
        factor, divisor = _SIZES[suffix], 1
    elif unit is Unit.MILLISECONDS and suffix in _DURATIONS_MS:
        factor, divisor = _DURATIONS_MS[suffix], 1
    elif unit is Unit.MINUTES and suffix in _DURATIONS_MS:
        factor, divisor = _DURATIONS_MS[suffix], MINUTE_MS
    else:
        raise BadValue(f"must be {_UNIT_TEXT[unit]}")
    whole, _, fraction = match["number"].replace("_", "").partition(".")
    # In integers, because floats cannot represent 0.1 exactly.
    scale = int("1" + "0" * len(fraction))
    numerator = int(whole + fraction) * factor
    value, rest = divmod(numerator, scale * divisor)
    if rest:
        raise BadValue(f"must be a whole number of {unit}" if unit else "must be a whole number")
    return value


_UNIT_TEXT = {
    Unit.NONE: "a whole number",
    Unit.BYTES: "a size: bytes, or a number with B, KiB, MiB, GiB, TiB (KB, MB… count by 1000)",
    Unit.MILLISECONDS: "a duration: milliseconds, or a number with ms, s, m, h, d, w",
    Unit.MINUTES: "a duration: minutes, or a number with s, m, h, d, w",
}


def describe_type(key: Key) -> str:
    """The values that the setting accepts, in words."""
    if key.type is bool:
        return "true or false"
    if key.type is ComponentLevels:
        return "COMPONENT=LEVEL, separated by commas"
    if key.type is Processes:
        return "a number, or auto"
    if key.type is int:
        return _UNIT_TEXT[key.setting.unit]
    if key.type is Endpoint:
        return "an address: HOST:PORT"
    if issubclass(key.type, StrEnum):
        return f"one of {', '.join(choice.value for choice in key.type)}"
    return "a text"


def describe(key: Key) -> str:
    """What the setting means, and its bounds."""
    return key.setting.doc + _bounds(key)


def _bounds(key: Key) -> str:
    setting = key.setting
    if key.type is not int:
        kind = describe_type(key)
        return f" {kind[0].upper()}{kind[1:]}." if kind.startswith("one of") else ""
    low = None if setting.min is None else format_value(key, setting.min)
    high = None if setting.max is None else format_value(key, setting.max)
    if low is not None and high is not None:
        text = f" {low} to {high}"
    elif low is not None:
        text = f" At least {low}"
    else:
        text = ""
    if setting.unlimited:
        text += ", or -1 for no limit" if text else " -1: no limit"
    return text + "." if text else ""


def _check_bounds(key: Key, value: int) -> None:
    setting = key.setting
    if setting.unlimited and value == UNLIMITED:
        return
    alternative = ", or -1 for no limit" if setting.unlimited else ""
    if setting.min is not None and value < setting.min:
        raise BadValue(f"must be at least {format_value(key, setting.min)}{alternative}")
    if setting.max is not None and value > setting.max:
        raise BadValue(f"must be at most {format_value(key, setting.max)}{alternative}")


def format_value(key: Key, value: object) -> str:
    """The shortest text that parses to the value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return _format_number(key.setting.unit, value)
    return str(value)


def _format_number(unit: Unit, value: int) -> str:
    if value <= 0 or unit is Unit.NONE:
        return str(value)
    steps: tuple[tuple[str, int], ...]
    if unit is Unit.BYTES:
        steps = (("TiB", 1024 * GIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))
    else:
        unit_ms = MINUTE_MS if unit is Unit.MINUTES else 1
        base = (("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS), ("s", SECOND_MS), ("ms", 1))
        steps = tuple((name, size // unit_ms) for name, size in base if size >= unit_ms)
    for suffix, size in steps:
        if value % size == 0:
            return f"{value // size}{suffix}"
    return str(value)
