"""What msgspec raises for bytes that are not the expected message.

Text that is not UTF-8 and deep nesting have errors of their own, which are easily forgotten: then a
peer, or a damaged file, causes an internal error instead of a clear one.
"""

from typing import Final

import msgspec

MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
