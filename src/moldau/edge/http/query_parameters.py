"""Query parameters: typed values with limits, and pages."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.requests import Request

from moldau.model.errors import ErrorCode, RefusedError

PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 1000
_DIGITS_MAX: Final = 19

T = TypeVar("T")


def bad_parameter(name: str, why: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, f"The query parameter '{name}' {why}")


def read_text(request: Request, name: str) -> str | None:
    """The value of a parameter. Raises RefusedError if it is given twice."""
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise bad_parameter(name, "may be given only once")
    return values[0] if values else None


def read_bytes(request: Request, name: str) -> list[bytes]:
    """All values of a parameter as bytes: percent-encoded values need not be UTF-8."""
    found = []
    for pair in request.scope["query_string"].split(b"&"):
        given, _, value = pair.partition(b"=")
        if unquote_to_bytes(given.replace(b"+", b" ")) == name.encode():
            found.append(unquote_to_bytes(value.replace(b"+", b" ")))
    return found


def read_bytes_once(request: Request, name: str) -> bytes | None:
    """Raises RefusedError if it is given twice."""
    found = read_bytes(request, name)
    if len(found) > 1:
        raise bad_parameter(name, "may be given only once")
    return found[0] if found else None


def read_int(request: Request, name: str, *, least: int, most: int) -> int | None:
    """The parameter as a number within limits. Raises RefusedError."""
    text = read_text(request, name)
    if text is None:
        return None
    value = parse_int(text)
    if value is None or not least <= value <= most:
        raise bad_parameter(name, f"must be a number from {least} to {most}")
    return value


def parse_int(text: str) -> int | None:
    """Plain decimal digits only, and few enough to parse quickly."""
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > _DIGITS_MAX:
        return None
    return int(text)


def read_flag(request: Request, name: str) -> bool:
    text = read_text(request, name)
    if text not in (None, "true", "false"):
        raise bad_parameter(name, "must be true or false")
    return text == "true"


def read_search(request: Request) -> Callable[[str], bool]:
    """Whether a name contains the parameter `search`; capitals do not matter."""
    text = (read_text(request, "search") or "").lower()
    return lambda name: text in name.lower()


def page_size(request: Request) -> int:
    size = read_int(request, "limit", least=1, most=PAGE_SIZE_MAX)
    return PAGE_SIZE if size is None else size


def take_page(items: Iterable[T], size: int) -> tuple[list[T], bool]:
    """The first `size` items, and whether there are more."""
    found = list(islice(items, size + 1))
    return found[:size], len(found) > size
