"""Responsible for parsing options of `format("moldau")`, by the table of those that there are.

Spark hands options over with their names in lower case; people write them in mixed case, so what
is said about one names it as it is written in the documentation. A name that is nobody's is an
error, since a misspelt `startingOffsets` would silently read the wrong records. What means nothing
here, as most settings of Kafka's own clients (`kafka.…`), is let go and told once: queries that
moved over from the Kafka connector have it.
"""

import difflib
import logging
import re
from collections.abc import Mapping
from typing import Final

from moldau.client.errors import InvalidArgumentError
from moldau.client.wire.security import PROTOCOL, Security, parse_security
from moldau.spark.option_table import OPTIONS, OptionSupport, Side, names_of

log = logging.getLogger(__name__)

BOOTSTRAP: Final = "kafka.bootstrap.servers"
VIEW_HINT: Final = "make a view: CREATE TEMPORARY VIEW … USING moldau OPTIONS (…)"
_KAFKA: Final = "kafka."
_SECURITY: Final = re.compile(r"kafka\.(security|sasl|ssl)\.")
_OF_SPARK: Final = frozenset({"checkpointlocation", "path", "queryname"})
"""Spark hands these over with the others."""
_KNOWN: Final = {option.name.lower(): option for option in OPTIONS}
_told: Final[set[str]] = set()
"""What was said in this process."""


def warn_once(message: str) -> None:
    """A warning, in each process at the most once."""
    if message not in _told:
        _told.add(message)
        log.warning("%s", message)


class Options:
    """Options by name, whatever the case of the letters; what they say is checked when asked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def text(self, name: str) -> str | None:
        """The value without blanks around it, None if it is not set."""
        value = self._values.get(name.lower())
        return None if value is None else value.strip()

    def flag(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def choice(self, name: str, words: tuple[str, ...], default: str) -> str:
        value = self.text(name)
        found = default if value is None else value.lower()
        if found not in words:
            raise InvalidArgumentError(f"option {name} is {' or '.join(words)}, not {value!r}")
        return found

    def whole_number(self, name: str, *, least: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            raise InvalidArgumentError(f"option {name} is a whole number, not {value!r}") from None
        if number < least:
            raise InvalidArgumentError(f"option {name} is at least {least}, not {number}")
        return number

    def check_names(self, side: Side) -> None:
        """Refuse names that are nobody's, and options that cannot be honoured."""
        for given in sorted(self._values.keys() - _OF_SPARK):
            option = _KNOWN.get(given)
            if option is None and given.startswith(_KAFKA):
                warn_once(f"option {given} is one of Kafka's own clients, and has no effect here")
            elif option is None:
                raise _unknown(given, side)
            elif not option.side.covers(side):
                warn_once(f"option {option.name} has no effect on a {side.value}")
            elif option.fate in (OptionSupport.REFUSED, OptionSupport.CANNOT):
                raise InvalidArgumentError(f"option {option.name} cannot be set: {option.note}")
            elif option.fate is OptionSupport.NO_EFFECT:
                warn_once(f"option {option.name} has no effect: {option.note}")

    # -- what reading and writing have in common

    def bootstrap(self) -> str:
        """Where brokers are. Raises InvalidArgumentError if nobody said."""
        found = self.text(BOOTSTRAP) or self.text("bootstrap.servers")
        if not found:
            raise InvalidArgumentError(
                f"option {BOOTSTRAP} is missing",
                hint=f'say where brokers are: .option("{BOOTSTRAP}", "HOST:PORT")'
                if self._values
                else f"no option was handed over at all. For a table of SQL: {VIEW_HINT}",
            )
        return found

    def timeout_seconds(self) -> float:
        """How long a broker may take, and how long a partition may be without a leader."""
        return (self.whole_number("kafka.request.timeout.ms") or 60_000) / 1000

    def client_id(self) -> str:
        return self.text("kafka.client.id") or "moldau-spark"

    def security(self) -> Security:
        """How connections are secured. Raises InvalidArgumentError."""
        given = {
            name.removeprefix(_KAFKA): value.strip()
            for name, value in self._values.items()
            if _SECURITY.match(name)
        }
        found = parse_security(given, _KAFKA)
        for prefix, part in (("ssl.", found.tls), ("sasl.", found.sasl)):
            for name in given:
                if part is None and name.startswith(prefix):
                    warn_once(
                        f"option {_KAFKA}{name} has no effect: option {_KAFKA}{PROTOCOL} does not "
                        f"ask for {prefix[:-1].upper()}"
                    )
        return found


def _unknown(given: str, side: Side) -> InvalidArgumentError:
    names = names_of(side)
    nearest = difflib.get_close_matches(given, [name.lower() for name in names], n=1, cutoff=0.5)
    meant = f": did you mean {_KNOWN[nearest[0]].name}?" if nearest else ""
    return InvalidArgumentError(
        f"unknown option {given}{meant}", hint=f"known are {', '.join(sorted(names))}"
    )
