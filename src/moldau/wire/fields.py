"""The field types with which messages are declared, and their versions.

A message is a class whose attributes are fields:

    class ProducePartition(Struct):
        index: int = i32()
        records: Records = records()

The annotation is for the type checker, the call for the codec. Its first argument is the versions
that have the field, as in Kafka's definitions ("0+", "3-12", "7"). A field without `default` is
required by the constructor; the default is also the value of a decoded message whose version does
not have the field.
"""

from functools import cache, partial
from typing import Any, NamedTuple, Protocol, TypeVar

from moldau.model.slices import Chunk

Records = Chunk | None
"""Record batches, opaque here: a view of the input after decode, any chunk before encode."""

VERSION_MAX = 32767
INT32_MIN = -(2**31)
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class Versions(NamedTuple):
    """A closed range of versions; empty if last < first."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


NO_VERSIONS = Versions(0, -1)


@cache
def parse_versions(text: str) -> Versions:
    """Read "3+", "0-12", "7" or "none"."""
    if text == "none":
        return NO_VERSIONS
    if text.endswith("+"):
        return Versions(int(text[:-1]), VERSION_MAX)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


class Missing:
    """The type of MISSING, which marks `no default`; None is a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()

FIXED_CODES = {
    "bool": "?",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "f64": "d",
    "uuid": "16s",
}
"""Kinds of a fixed size, and their codes in the struct module."""
FIXED_SIZES = {"?": 1, "b": 1, "B": 1, "h": 2, "i": 4, "q": 8, "d": 8, "16s": 16}

ZERO_UUID = bytes(16)
IMPLIED_DEFAULTS: dict[str, object] = {
    "bool": False,
    "f64": 0.0,
    "uuid": ZERO_UUID,
    "string": "",
    "bytes": b"",
    "records": None,
    "array": (),
    "struct": None,
}
"""Values of fields without a default at versions that lack them; integers are 0."""


class StructType(Protocol):
    """A class of schema.py, as far as encoder and decoder need it."""

    __name__: str
    FIELDS: dict[str, "Field"]


E = TypeVar("E", contravariant=True)


class MessageType(StructType, Protocol):
    FLEXIBLE: int
    """First version with compact lengths and tagged fields."""
    ELEMENTS_MAX: int


class Field(NamedTuple):
    """One declared field; `element` is the type of an array's elements or of a nested struct."""

    kind: str
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: object
    ignorable: bool
    element: "StructType | str | None"

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def absent_value(self) -> object:
        """The value of the attribute if the version does not have the field."""
        if self.default is not MISSING:
            return self.default
        return IMPLIED_DEFAULTS.get(self.kind, 0)


def _field(
    kind: str,
    versions: str = "0+",
    *,
    default: object = MISSING,
    nullable: str = "none",
    tag: int | None = None,
    ignorable: bool = False,
    element: "StructType | str | None" = None,
) -> Any:
    exists = parse_versions(versions)
    return Field(
        kind=kind,
        versions=exists,
        nullable=parse_versions(nullable),
        tagged=NO_VERSIONS if tag is None else exists,
        tag=-1 if tag is None else tag,
        default=default,
        ignorable=ignorable,
        element=element,
    )


class _FixedSpec(Protocol):
    """Declares a field of a fixed size."""

    def __call__(
        self,
        versions: str = "0+",
        *,
        default: object = MISSING,
        tag: int | None = None,
        ignorable: bool = False,
    ) -> Any: ...


class _VariableSpec(Protocol):
    """Declares a field with a length, which may be null."""

    def __call__(
        self,
        versions: str = "0+",
        *,
        nullable: str = "none",
        default: object = MISSING,
        tag: int | None = None,
        ignorable: bool = False,
    ) -> Any: ...


class _NestedSpec(Protocol[E]):
    """Declares a field that consists of others, which may be null."""

    def __call__(
        self,
        element: E,
        versions: str = "0+",
        *,
        nullable: str = "none",
        default: object = MISSING,
        tag: int | None = None,
        ignorable: bool = False,
    ) -> Any: ...


def _nested_field(kind: str, element: StructType | str, versions: str = "0+", **rest: Any) -> Any:
    return _field(kind, versions, element=element, **rest)


boolean: _FixedSpec = partial(_field, "bool")
"""One byte; anything but zero is true."""
i8: _FixedSpec = partial(_field, "i8")
i16: _FixedSpec = partial(_field, "i16")
i32: _FixedSpec = partial(_field, "i32")
i64: _FixedSpec = partial(_field, "i64")
f64: _FixedSpec = partial(_field, "f64")
uuid: _FixedSpec = partial(_field, "uuid")
"""Exactly 16 bytes."""
string: _VariableSpec = partial(_field, "string")
octets: _VariableSpec = partial(_field, "bytes")
"""Bytes, copied out of the input."""
array: _NestedSpec[StructType | str] = partial(_nested_field, "array")
"""A list of structs, or of the primitive kind that `element` names ("i32", "string")."""
struct: _NestedSpec[StructType] = partial(_nested_field, "struct")
"""A nested struct. Tagged ones default to None: not sent."""


def records() -> Any:
    """Record batches: never copied, nullable."""
    return _field("records", nullable="0+")
