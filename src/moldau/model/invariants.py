"""Checks of invariants, for tests and the simulator."""

from moldau.model.errors import MoldauError


class InvariantError(MoldauError):
    """The state is inconsistent: a bug."""


def require(holds: bool, fact: str) -> None:
    if not holds:
        raise InvariantError(f"invariant violated: {fact}")
