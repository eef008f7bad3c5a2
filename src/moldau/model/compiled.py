"""What mypyc has to know of a class; without effect where the class is interpreted."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

T = TypeVar("T", bound=type)

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_: bool) -> Callable[[T], T]:
        """A compiled class has no interpreted subclasses unless it says
        `allow_interpreted_subclasses=True`."""
        return lambda cls: cls
