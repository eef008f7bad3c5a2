"""Generates decode functions: one per message and version, nested structs inlined.

A generated function, for one level of Produce version 9:

    def decode(data, pos):
        end = len(data)
        o1 = new(ProduceRequest)
        n2 = data[pos]; pos += 1             # length of a compact string, one byte if short
        if n2 > 127: n2, pos = uvarint(data, pos - 1)
        ...
        o1.acks, o1.timeout_ms, n3, = unpack1(data, pos); pos += 7
        ...

Consecutive fixed-size fields, and the length that follows them, are read with one call. A length is
compared with the remaining bytes before anything of that size is allocated; unpack and indexing
detect the end of the data by themselves, and the wrapper turns their exceptions into
PeerProtocolError.
"""

import struct
from collections.abc import Callable
from typing import Any, NoReturn, cast

from moldau.model.errors import PeerProtocolError
from moldau.wire.fields import FIXED_CODES, FIXED_SIZES, Field, MessageType, StructType
from moldau.wire.source_writer import SourceWriter
from moldau.wire.take import TAKE
from moldau.wire.varint import read_uvarint


def _short() -> NoReturn:
    raise PeerProtocolError("a length exceeds the end of the message")


def _too_many(limit: int) -> NoReturn:
    raise PeerProtocolError(f"the message has more than {limit} array elements")


def _null(name: str) -> NoReturn:
    raise PeerProtocolError(f"{name} must not be null")


def _negative(name: str) -> NoReturn:
    raise PeerProtocolError(f"{name} has a negative length")


def _tag_size(tag: int) -> NoReturn:
    raise PeerProtocolError(f"tagged field {tag} does not have its declared length")


TAKE_COMPACT = [TAKE[0], *TAKE[:-1]]
"""By the length of compact fields, which is one more."""


def _long_octets(data: memoryview, position: int, size: int) -> tuple[bytes, int]:
    stop = position + size
    if stop > len(data):
        _short()
    return bytes(data[position:stop]), stop


def _long_text(data: memoryview, position: int, size: int) -> tuple[str, int]:
    octets, stop = _long_octets(data, position, size)
    return octets.decode(), stop


def _long_compact_octets(data: memoryview, position: int) -> tuple[bytes, int]:
    size, position = read_uvarint(data, position)
    if not size:
        raise PeerProtocolError("a null is encoded in more bytes than needed")
    return _long_octets(data, position, size - 1)


def _long_compact_text(data: memoryview, position: int) -> tuple[str, int]:
    octets, stop = _long_compact_octets(data, position)
    return octets.decode(), stop


def size_min(cls: StructType, version: int, *, flexible: bool) -> int:
    """The minimum size of an encoded instance."""
    size = 1 if flexible else 0
    for field in cls.FIELDS.values():
        if version in field.versions and version not in field.tagged:
            size += _field_size_min(field, version, flexible=flexible)
    return size


def _field_size_min(field: Field, version: int, *, flexible: bool) -> int:
    if field.kind == "struct":
        if version in field.nullable:
            return 1
        return size_min(cast("StructType", field.element), version, flexible=flexible)
    return _kind_size_min(field.kind, flexible=flexible)


def _kind_size_min(kind: str, *, flexible: bool) -> int:
    if kind in FIXED_CODES:
        return FIXED_SIZES[FIXED_CODES[kind]]
    if flexible:
        return 1
    return 2 if kind == "string" else 4


class DecoderWriter(SourceWriter):
    """Generates the source of one decode function."""

    def __init__(self, version: int, *, flexible: bool) -> None:
        super().__init__(version, flexible=flexible)
        self.names |= {
            "new": object.__new__,
            "uvarint": read_uvarint,
            "unpack_from": struct.unpack_from,
            "short": _short,
            "too_many": _too_many,
            "null": _null,
            "negative": _negative,
            "tag_size": _tag_size,
            "take": TAKE_COMPACT if flexible else TAKE,
            "long_bytes": _long_compact_octets if flexible else _long_octets,
            "long_string": _long_compact_text if flexible else _long_text,
            "PeerProtocolError": PeerProtocolError,
            "BadInput": (struct.error, IndexError, UnicodeDecodeError, OverflowError),
        }

    # -- runs of fixed-size values

    def read(self, target: str, code: str) -> None:
        """Add to the fixed-size values that the next flush reads at once."""
        self._run.append((target, code))

    def flush(self) -> None:
        run, self._run = self._run, []
        if not run:
            return
        if len(run) == 1 and run[0][1] == "B":
            self.line(f"{run[0][0]} = data[pos]; pos += 1")
            return
        layout = struct.Struct(">" + "".join(code for _, code in run))
        unpack = self.constant("unpack", layout.unpack_from)
        targets = ", ".join(target for target, _ in run)
        self.line(f"{targets}, = {unpack}(data, pos); pos += {layout.size}")

    # -- lengths

    def read_length(self, kind: str) -> str:
        """Read a length; a compact one stays as encoded (one more)."""
        length = self.fresh("n")
        if self.flexible:
            self.read(length, "B")
            self.flush()
            self.line(f"if {length} > 127: {length}, pos = uvarint(data, pos - 1)")
        else:
            self.read(length, "h" if kind == "string" else "i")
            self.flush()
        return length

    def null_or_present(self, length: str, target: str, name: str, *, nullable: bool) -> None:
        """Open the branch for a present value; a null is stored or rejected."""
        absent = f"not {length}" if self.flexible else f"{length} < 0"
        self.line(f"if {absent}:")
        if not self.flexible:
            self.line(f"    if {length} != -1: negative({name!r})")
        self.line(f"    {target} = None" if nullable else f"    null({name!r})")
        self.line("else:")
        self.depth += 1

    # -- fields

    def variable(self, target: str, kind: str, name: str, *, nullable: bool) -> None:
        if kind == "records":
            self.view(target, name)
            return
        length = self.fresh("n")
        decode = ".decode()" if kind == "string" else ""
        absent = f"{target} = None" if nullable else f"null({name!r})"
        short = f"{target} = take[{length}](data, pos)[0]{decode}; pos += {length}"
        if self.flexible:
            self.read(length, "B")
            self.flush()
            self.line(f"if {length} > 127: {target}, pos = long_{kind}(data, pos - 1)")
            self.line(f"elif {length}: {short} - 1")
            self.line(f"else: {absent}")
            return
        self.read(length, "h" if kind == "string" else "i")
        self.flush()
        self.line(f"if {length} > 127: {target}, pos = long_{kind}(data, pos, {length})")
        self.line(f"elif {length} >= 0: {short}")
        self.line(f"elif {length} == -1: {absent}")
        self.line(f"else: negative({name!r})")

    def view(self, target: str, name: str) -> None:
        """Records: a slice of the input, not a copy."""
        length = self.read_length("records")
        self.null_or_present(length, target, name, nullable=True)
        stop = self.fresh("e")
        self.line(f"{stop} = pos + {length}" + (" - 1" if self.flexible else ""))
        self.line(f"if {stop} > end: short()")
        self.line(f"{target} = data[pos:{stop}]; pos = {stop}")
        self.depth -= 1

    def array(self, target: str, field: Field, name: str) -> None:
        length = self.read_length("array")
        nullable = self.version in field.nullable
        self.null_or_present(length, target, name, nullable=nullable)
        if self.flexible:
            self.line(f"{length} -= 1")
        if isinstance(field.element, str):
            self.primitives(target, length, field.element, name)
        elif field.element is not None:
            self.structs(target, length, field.element)
        self.depth -= 1

    def check_count(self, length: str, size: int) -> None:
        """Reject an impossible count before allocating anything for it."""
        self.line(f"if {length} * {size} > end - pos: short()")
        self.line(f"room -= {length}")
        self.line("if room < 0: too_many(room_max)")

    def primitives(self, target: str, length: str, kind: str, name: str) -> None:
        size = _kind_size_min(kind, flexible=self.flexible)
        self.check_count(length, size)
        code = FIXED_CODES.get(kind)
        if code is not None and code != "16s":
            self.line(f"{target} = list(unpack_from('>%d{code}' % {length}, data, pos))")
            self.line(f"pos += {length} * {size}")
            return
        items, item = self.fresh("a"), self.fresh("v")
        self.line(f"{items} = []")
        self.line(f"for _ in range({length}):")
        self.depth += 1
        if code is not None:
            self.read(item, code)
            self.flush()
        else:
            self.variable(item, kind, name, nullable=False)
        self.line(f"{items}.append({item})")
        self.depth -= 1
        self.line(f"{target} = {items}")

    def structs(self, target: str, length: str, element: StructType) -> None:
        size = size_min(element, self.version, flexible=self.flexible)
        self.check_count(length, size)
        items = self.fresh("a")
        self.line(f"{target} = {items} = []")
        self.line(f"for _ in range({length}):")
        self.depth += 1
        item = self.struct(element)
        self.line(f"{items}.append({item})")
        self.depth -= 1

    def nested(self, target: str, field: Field) -> None:
        element = cast("StructType", field.element)
        if self.version not in field.nullable:
            self.line(f"{target} = {self.struct(element)}")
            return
        marker = self.fresh("n")
        self.read(marker, "b")
        self.flush()
        self.line(f"if {marker} < 0: {target} = None")
        self.line("else:")
        self.depth += 1
        self.line(f"{target} = {self.struct(element)}")
        self.depth -= 1

    def field(self, target: str, name: str, field: Field) -> None:
        if field.kind in FIXED_CODES:
            self.read(target, FIXED_CODES[field.kind])
        elif field.kind == "array":
            self.array(target, field, name)
        elif field.kind == "struct":
            self.nested(target, field)
        else:
            self.variable(target, field.kind, name, nullable=self.version in field.nullable)

    def struct(self, cls: StructType) -> str:
        """Read all fields of `cls`; returns the name of the variable with the instance."""
        var = self.fresh("o")
        self.flush()
        self.line(f"{var} = new({self.constant(cls.__name__, cls)})")
        tagged: list[tuple[str, Field]] = []
        for name, field in cls.FIELDS.items():
            if self.version in field.tagged:
                tagged.append((name, field))
            if self.version not in field.versions or self.version in field.tagged:
                self.line(f"{var}.{name} = {self.absent(field)}")
        for name, field in cls.FIELDS.items():
            if self.version in field.versions and self.version not in field.tagged:
                self.field(f"{var}.{name}", name, field)
        if self.flexible:
            self.tags(var, tagged)
        self.flush()
        return var

    def absent(self, field: Field) -> str:
        value = field.absent_value
        if value == ():
            return "[]"
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        return self.constant("absent", value)

    def tags(self, var: str, tagged: list[tuple[str, Field]]) -> None:
        count, tag, size, stop = (self.fresh(prefix) for prefix in "ctse")
        self.read(count, "B")
        self.flush()
        self.line(f"if {count}:")
        self.depth += 1
        self.line(f"if {count} > 127: {count}, pos = uvarint(data, pos - 1)")
        self.line(f"for _ in range({count}):")
        self.depth += 1
        self.line(f"{tag}, pos = uvarint(data, pos)")
        self.line(f"{size}, pos = uvarint(data, pos)")
        self.line(f"{stop} = pos + {size}")
        self.line(f"if {stop} > end: short()")
        for name, field in tagged:
            self.line(f"if {tag} == {field.tag}:")
            self.depth += 1
            self.field(f"{var}.{name}", name, field)
            self.flush()
            self.line(f"if pos != {stop}: tag_size({field.tag})")
            self.depth -= 1
        # Unknown fields are skipped: newer clients may send them.
        self.line(f"pos = {stop}")
        self.depth -= 2


def decoder_source(cls: MessageType, version: int) -> tuple[str, dict[str, object]]:
    """The source of the function and the names that it uses."""
    writer = DecoderWriter(version, flexible=version >= cls.FLEXIBLE)
    writer.names["room_max"] = cls.ELEMENTS_MAX
    var = writer.struct(cls)
    source = "\n".join(
        [
            "def decode(data, pos):",
            f"    end = len(data); room = {cls.ELEMENTS_MAX}",
            "    try:",
            *writer.lines,
            # Trailing bytes are ignored, as in Kafka: librdkafka's Metadata request for all topics
            # has three.
            f"        return {var}",
            "    except BadInput as error:",
            f"        raise PeerProtocolError(f'{cls.__name__} v{version}: {{error}}') from error",
        ]
    )
    return source, writer.names


def compile_decoder(cls: MessageType, version: int) -> Callable[[memoryview, int], Any]:
    source, names = decoder_source(cls, version)
    exec(compile(source, f"<{cls.__name__}.decode v{version}>", "exec"), names)
    return cast("Callable[[memoryview, int], Any]", names["decode"])
