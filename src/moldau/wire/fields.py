"""Owns the words in which a message is declared: the kinds of fields and their versions.

A message is a class whose attributes are fields:

    class ProducePartition(Struct):
        index: int = i32()
        records: Records = records()

The annotation is for the reader and the type checker, the call on the right for the codec. Every
call takes first the versions in which the field exists, written as Kafka's definitions write them
("0+", "3-12", "7"). A field without `default` must be given to the constructor; one with it is
also what a reader sees when the version on the wire does not carry the field.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.model.slices import Chunk

if TYPE_CHECKING:
    from moldau.wire.schema import Struct

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
    """The type of the mark for `no default`; None is a value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()

FIXED_CODES = {
    "bool": "?",
    "i8": "b",
    "i16": "h",
    "u16": "H",
    "i32": "i",
    "u32": "I",
    "i64": "q",
    "f64": "d",
    "uuid": "16s",
}
"""Kinds of a fixed size, and how the struct module calls them."""
FIXED_SIZES = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8, "16s": 16}

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
"""What a field without a default is read as at versions that lack it; integers are 0."""


class Field(NamedTuple):
    """One declared field; `element` is the type of an array's elements or of a nested struct."""

    kind: str
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: object
    ignorable: bool
    element: "type[Struct] | str | None"

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def absent_value(self) -> object:
        """What stands in the attribute when the version does not carry the field."""
        if self.default is not MISSING:
            return self.default
        return IMPLIED_DEFAULTS.get(self.kind, 0)


def _field(
    kind: str,
    versions: str,
    default: object,
    *,
    nullable: str = "none",
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
    element: "type[Struct] | str | None" = None,
) -> Any:
    exists = parse_versions(versions)
    if tag is None:
        tagged_versions = NO_VERSIONS
    else:
        tagged_versions = exists if tagged is None else parse_versions(tagged)
    return Field(
        kind=kind,
        versions=exists,
        nullable=parse_versions(nullable),
        tagged=tagged_versions,
        tag=-1 if tag is None else tag,
        default=default,
        ignorable=ignorable,
        element=element,
    )


def boolean(
    versions: str = "0+",
    *,
    default: object = MISSING,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """One byte; anything but zero is true."""
    return _field("bool", versions, default, tag=tag, tagged=tagged, ignorable=ignorable)


def i8(
    versions: str = "0+",
    *,
    default: object = MISSING,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    return _field("i8", versions, default, tag=tag, tagged=tagged, ignorable=ignorable)


def i16(
    versions: str = "0+",
    *,
    default: object = MISSING,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    return _field("i16", versions, default, tag=tag, tagged=tagged, ignorable=ignorable)


def u16(
    versions: str = "0+",
    *,
    default: object = MISSING,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    return _field("u16", versions, default, tag=tag, tagged=tagged, ignorable=ignorable)


def i32(
    versions: str = "0+",
    *,
    default: object = MISSING,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    return _field("i32", versions, default, tag=tag, tagged=tagged, ignorable=ignorable)


def u32(
    versions: str = "0+",
    *,
    default: object = MISSING,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    return _field("u32", versions, default, tag=tag, tagged=tagged, ignorable=ignorable)


def i64(
    versions: str = "0+",
    *,
    default: object = MISSING,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    return _field("i64", versions, default, tag=tag, tagged=tagged, ignorable=ignorable)


def f64(
    versions: str = "0+",
    *,
    default: object = MISSING,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    return _field("f64", versions, default, tag=tag, tagged=tagged, ignorable=ignorable)


def uuid(
    versions: str = "0+",
    *,
    default: object = MISSING,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Exactly 16 bytes."""
    return _field("uuid", versions, default, tag=tag, tagged=tagged, ignorable=ignorable)


def string(
    versions: str = "0+",
    *,
    nullable: str = "none",
    default: object = MISSING,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    return _field(
        "string",
        versions,
        default,
        nullable=nullable,
        tag=tag,
        tagged=tagged,
        ignorable=ignorable,
    )


def octets(
    versions: str = "0+",
    *,
    nullable: str = "none",
    default: object = MISSING,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """Bytes, copied out of the input."""
    return _field(
        "bytes", versions, default, nullable=nullable, tag=tag, tagged=tagged, ignorable=ignorable
    )


def records(versions: str = "0+", *, default: object = MISSING, ignorable: bool = False) -> Any:
    """Record batches: never copied, nullable in every version."""
    return _field("records", versions, default, nullable="0+", ignorable=ignorable)


def array(
    element: "type[Struct] | str",
    versions: str = "0+",
    *,
    nullable: str = "none",
    default: object = MISSING,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """A list of structs, or of the primitive kind that `element` names ("i32", "string")."""
    return _field(
        "array",
        versions,
        default,
        nullable=nullable,
        tag=tag,
        tagged=tagged,
        ignorable=ignorable,
        element=element,
    )


def struct(
    element: "type[Struct]",
    versions: str = "0+",
    *,
    nullable: str = "none",
    default: object = MISSING,
    tag: int | None = None,
    tagged: str | None = None,
    ignorable: bool = False,
) -> Any:
    """A nested struct. Tagged ones default to None, which is: not sent."""
    return _field(
        "struct",
        versions,
        default,
        nullable=nullable,
        tag=tag,
        tagged=tagged,
        ignorable=ignorable,
        element=element,
    )
