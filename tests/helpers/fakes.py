"""The base of fakes: of any type to mypy, so that they may stand for what they do not derive from.

Any itself is no base that takes arguments before Python 3.12.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Fake = Any
else:
    Fake = object
