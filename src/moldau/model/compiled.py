"""What of this package is compiled by mypyc, and what mypyc has to know of a class."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TypeVar

T = TypeVar("T", bound=type)

_OF_THE_HOT_PATH: Final = "moldau.raft.core"

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_: bool) -> Callable[[T], T]:
        """A compiled class has no interpreted subclasses unless it says
        `allow_interpreted_subclasses=True`. Without effect where the class is interpreted."""
        return lambda cls: cls


def is_compiled() -> bool:
    """Whether Python found libraries of the hot path, which must have been made for this Python."""
    spec = find_spec(_OF_THE_HOT_PATH)
    return spec is not None and spec.origin is not None and not spec.origin.endswith(".py")


def described() -> str:
    """Of the version: how fast it is depends on it."""
    return "compiled" if is_compiled() else "pure Python"
