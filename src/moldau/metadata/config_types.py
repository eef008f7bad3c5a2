"""Definition of one setting: type, bounds, default and documentation, and parsing of values.

The table of settings is in `topic_config_table`; `topic_configs` resolves overrides.
"""

from enum import IntEnum
from typing import Final

from msgspec import Struct

from moldau.model.errors import ErrorCode, RefusedError

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_INT_MIN: Final = -(2**31)
_LONG_MIN: Final = -(2**63)
_SHOWN_LENGTH_MAX: Final = 80
_UNITS: Final = frozenset({"bytes", "messages", "ms", "replicas"})

ConfigValue = bool | int | float | str | tuple[str, ...]


class ConfigType(IntEnum):
    """Numbers as in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigSource(IntEnum):
    """The source of a value; numbers as in DescribeConfigs. Of 1 to 5 the lowest wins."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6


class Synonym(Struct, frozen=True, kw_only=True):
    """A broker setting with the default of a topic setting, maybe in another unit."""

    name: str
    scale: int = 1


class ConfigDefinition(Struct, frozen=True, kw_only=True):
    """One setting. `least` and `most` bound numbers, `choices` strings and the items of lists."""

    name: str
    type: ConfigType
    default: str
    documentation: str
    synonyms: tuple[Synonym, ...] = ()
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    is_for_tools: bool = False
    """Set by a command of Moldau, not by people."""
    has_effect: bool = True
    """Otherwise it is only stored, for tools that expect it."""

    @property
    def meaning(self) -> str:
        """The documentation, with bounds that do not go without saying."""
        if self.least is not None and self.most is not None:
            return f"{self.documentation} {self.least:g} to {self.most:.0f}."
        if self.least is not None and self.least > 0:
            return f"{self.documentation} At least {self.least:g}."
        if self.choices and self.type is ConfigType.STRING:
            return f"{self.documentation} One of {', '.join(self.choices)}."
        return self.documentation

    @property
    def values(self) -> tuple[str, ...]:
        """All that it may have, or a list may hold; empty: any of the type."""
        return ("true", "false") if self.type is ConfigType.BOOLEAN else self.choices

    @property
    def unit(self) -> str | None:
        """Of a number; Kafka's names end with it."""
        suffix = self.name.rpartition(".")[2]
        is_number = self.type in (ConfigType.INT, ConfigType.SHORT, ConfigType.LONG)
        return suffix if is_number and suffix in _UNITS else None

    def parse(self, value: str | None) -> ConfigValue:
        """The typed value. Raises RefusedError(INVALID_CONFIG)."""
        if value is None:
            raise RefusedError(
                ErrorCode.INVALID_CONFIG,
                f"{self.name} has no value; to use the default, delete the setting",
            )
        text = value.strip()
        match self.type:
            case ConfigType.BOOLEAN:
                return self._parse_boolean(text)
            case ConfigType.STRING:
                return self._checked_choice(text, text)
            case ConfigType.LIST:
                return self._parse_list(text)
            case ConfigType.DOUBLE:
                double = self._parse_double(text)
                self._check_range(double, text)
                return double
            case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
                integer = self._parse_integer(text)
                self._check_range(integer, text)
                return integer

    def _parse_boolean(self, text: str) -> bool:
        lowered = text.lower()
        if lowered not in ("true", "false"):
            raise self.invalid(text, "must be true or false")
        return lowered == "true"

    def _parse_integer(self, text: str) -> int:
        # isdecimal alone accepts digits of other scripts, int() accepts underscores.
        digits = text[1:] if text[:1] in ("-", "+") else text
        if not (digits.isascii() and digits.isdecimal()) or len(digits) > 20:
            raise self.invalid(text, "must be a whole number")
        number = int(text)
        low, high = {
            ConfigType.SHORT: (-(2**15), 2**15 - 1),
            ConfigType.INT: (_INT_MIN, INT_MAX),
        }.get(self.type, (_LONG_MIN, LONG_MAX))
        if not low <= number <= high:
            raise self.invalid(text, f"must be between {low} and {high}")
        return number

    def _parse_double(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise self.invalid(text, "must be a number") from None
        if number != number:
            raise self.invalid(text, "must be a number")
        return number

    def _parse_list(self, text: str) -> tuple[str, ...]:
        items = split_list(text)
        for item in items:
            self._checked_choice(item, text)
        if self.choices and not items:
            raise self.invalid(text, f"must name at least one of {', '.join(self.choices)}")
        return items

    def _checked_choice(self, item: str, text: str) -> str:
        if self.choices and item not in self.choices:
            raise self.invalid(text, f"must be one of {', '.join(self.choices)}")
        return item

    def _check_range(self, number: float, text: str) -> None:
        if self.least is not None and number < self.least:
            raise self.invalid(text, f"must be at least {self.least:g}")
        if self.most is not None and number > self.most:
            raise self.invalid(text, f"must be at most {self.most:g}")

    def invalid(self, value: str, reason: str) -> RefusedError:
        return RefusedError(
            ErrorCode.INVALID_CONFIG, f"Invalid value {shown(value)} for {self.name}: {reason}"
        )


def split_list(text: str) -> tuple[str, ...]:
    """Items of a comma-separated value, without empty ones and repetitions."""
    return tuple(dict.fromkeys(item for part in text.split(",") if (item := part.strip())))


def shown(text: str) -> str:
    """A user's text for an error message: quoted and shortened."""
    if len(text) > _SHOWN_LENGTH_MAX:
        text = text[:_SHOWN_LENGTH_MAX] + "…"
    return repr(text)
