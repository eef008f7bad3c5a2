"""What a target is: a function that reads hostile bytes, and what it may do with them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from moldau.model.errors import MoldauError

KIBIBYTE: Final = 1024
MEBIBYTE: Final = 1024 * KIBIBYTE


class BrokenRuleError(Exception):
    """A property that a target checks does not hold. Never an allowed outcome."""


def check(holds: bool, rule: str) -> None:
    """Report a property that does not hold; unlike `assert`, it is never compiled away."""
    if not holds:
        raise BrokenRuleError(rule)


class Target(Struct, frozen=True, kw_only=True):
    """One reader of hostile bytes."""

    name: str
    about: str
    """What is read, for the summary."""
    run: Callable[[bytes], None]
    """Reads one input. Raises nothing but what is allowed."""
    allowed: tuple[type[BaseException], ...]
    """The errors by which the product rejects the input. Everything else is a finding."""
    seeds: Callable[[], Mapping[str, bytes] | Iterable[tuple[str, bytes]]]
    """Real messages by name, from which the corpus in the repository is made."""
    bytes_max: int = 4 * KIBIBYTE
    """Largest input. Most mistakes need few bytes, and short inputs run faster."""
    seconds_max: float = 5.0
    """Processor time for one input; more is a hang."""
    memory_bytes_max: int = 64 * MEBIBYTE
    """Growth of the process while it reads one input."""
    reset: Callable[[], None] | None = None
    """Drops the state that inputs leave behind, for targets that have one. Findings of such a
    target are kept with all inputs since the last reset."""


REFUSALS: Final = (MoldauError,)
"""All errors of the product: where several layers read one input."""
