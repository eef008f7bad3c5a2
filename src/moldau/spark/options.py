"""Parses the options of `format("moldau")` by the option table.

Spark passes names in lower case; messages spell them as the documentation does. An unknown name is
an error, since a misspelt `startingOffsets` would silently read the wrong records. Settings of
Kafka's own clients (`kafka.…`) without effect here are only logged once, since queries that were
moved from the Kafka connector have them.
"""

import difflib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from moldau.client.errors import InvalidArgumentError
from moldau.client.security import OPTIONS as SECURITY_OPTIONS
from moldau.client.security import PROTOCOL, Security, parse_security
from moldau.client.wire.client import KafkaClient
from moldau.spark.option_table import BOOTSTRAP, OPTIONS, OptionSupport, Side, names_of

log = logging.getLogger(__name__)

VIEW_HINT: Final = "create a view instead: CREATE TEMPORARY VIEW … USING moldau OPTIONS (…)"
_KAFKA: Final = "kafka."
_SECURITY: Final = re.compile(r"kafka\.(security|sasl|ssl)\.")
_OF_SPARK: Final = frozenset({"checkpointlocation", "path", "queryname"})
"""Spark's own options, which it passes along with the others."""
_KNOWN: Final = {option.name.lower(): option for option in OPTIONS}
_warned: Final[set[str]] = set()
"""Messages that this process has logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How to connect to brokers."""

    bootstrap: str
    client_id: str
    timeout_seconds: float
    """How long to retry while brokers do not respond or a partition has no leader."""
    security: Security

    def new_client(self, *, request_seconds_max: float) -> KafkaClient:
        """The limit of a request keeps a hanging broker from using up the whole timeout."""
        return KafkaClient(
            self.bootstrap,
            client_id=self.client_id,
            timeout=min(self.timeout_seconds, request_seconds_max),
            security=self.security,
        )


def security_options(options: Mapping[str, str]) -> dict[str, str]:
    """Those of the options that are about TLS and SASL."""
    return {name: value for name, value in options.items() if _SECURITY.match(name.lower())}


def warn_once(message: str) -> None:
    """Logs a warning, at most once per process."""
    if message not in _warned:
        _warned.add(message)
        log.warning("%s", message)


class Options:
    """Options by case-insensitive name; a value is checked when it is read."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def text(self, name: str) -> str | None:
        """The value without surrounding blanks; None if it is not set."""
        value = self._values.get(name.lower())
        return None if value is None else value.strip()

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def choice(self, name: str, words: tuple[str, ...], default: str) -> str:
        value = self.text(name)
        found = default if value is None else value.lower()
        if found not in words:
            raise InvalidArgumentError(f"option {name} must be {' or '.join(words)}, not {value!r}")
        return found

    def whole_number(self, name: str, *, least: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            raise InvalidArgumentError(f"option {name} must be an integer, not {value!r}") from None
        if number < least:
            raise InvalidArgumentError(f"option {name} must be at least {least}, not {number}")
        return number

    def check_names(self, side: Side) -> None:
        """Rejects unknown names, and options that are not supported."""
        for given in sorted(self._values.keys() - _OF_SPARK):
            option = _KNOWN.get(given)
            if option is None and given.startswith(_KAFKA) and not _is_typo(given):
                warn_once(f"option {given} is a setting of Kafka's clients, and has no effect here")
            elif option is None:
                raise _unknown(given, side)
            elif not option.side.covers(side):
                warn_once(f"option {option.name} has no effect on a {side.value}")
            elif option.support in (OptionSupport.REFUSED, OptionSupport.CANNOT):
                raise InvalidArgumentError(f"option {option.name} cannot be set: {option.note}")
            elif option.support is OptionSupport.NO_EFFECT:
                warn_once(f"option {option.name} has no effect: {option.note}")

    # -- options of both reading and writing

    def bootstrap(self) -> str:
        """Addresses of brokers. Raises InvalidArgumentError if the option is missing."""
        found = self.text(BOOTSTRAP) or self.text("bootstrap.servers")
        if not found:
            raise InvalidArgumentError(
                f"option {BOOTSTRAP} is missing",
                hint=f'add it: .option("{BOOTSTRAP}", "HOST:PORT")'
                if self._values
                else f"Spark passed no options at all. If this is an SQL table: {VIEW_HINT}",
            )
        return found

    def connection(self) -> dict[str, Any]:
        """The fields of ConnectionOptions. Raises InvalidArgumentError."""
        return {
            "bootstrap": self.bootstrap(),
            "client_id": self.text("kafka.client.id") or "moldau-spark",
            "timeout_seconds": (self.whole_number("kafka.request.timeout.ms") or 60_000) / 1000,
            "security": self.security(),
        }

    def security(self) -> Security:
        """TLS and SASL settings. Raises InvalidArgumentError."""
        given = {
            name.removeprefix(_KAFKA): value.strip()
            for name, value in self._values.items()
            if name.removeprefix(_KAFKA) in SECURITY_OPTIONS and name.startswith(_KAFKA)
        }
        found = parse_security(given, _KAFKA)
        for prefix, part in (("ssl.", found.tls), ("sasl.", found.sasl)):
            for name in given:
                if part is None and name.startswith(prefix):
                    warn_once(
                        f"option {_KAFKA}{name} has no effect: option {_KAFKA}{PROTOCOL} does not "
                        f"enable {prefix[:-1].upper()}"
                    )
        return found


def _is_typo(given: str) -> bool:
    """Whether it looks like an option of TLS or SASL, which a typo would leave without effect.

    Kafka's clients have others, whose names differ more.
    """
    if not _SECURITY.match(given) or given.removeprefix(_KAFKA) in SECURITY_OPTIONS:
        return False
    names = [name for name in _KNOWN if _SECURITY.match(name)]
    return bool(difflib.get_close_matches(given, names, cutoff=0.87))


def _unknown(given: str, side: Side) -> InvalidArgumentError:
    names = names_of(side)
    nearest = difflib.get_close_matches(given, [name.lower() for name in names], n=1, cutoff=0.5)
    meant = f": did you mean {_KNOWN[nearest[0]].name}?" if nearest else ""
    return InvalidArgumentError(
        f"unknown option {given}{meant}", hint=f"known options: {', '.join(sorted(names))}"
    )
