"""Generates encode functions: one per message and version, nested structs inlined.

A generated function appends packed pieces to a list and joins them at the end. Consecutive
fixed-size fields, constant zeros (an empty section of tagged fields) and the length that follows
them are packed with one call. Large records become a chunk of their own without being copied or
read; the pieces before them are joined into another.

There is a second form for large messages: a generator, which yields once per struct in an array,
so that others are served while it encodes.
"""

import struct
from collections.abc import Callable, Generator
from functools import cache
from typing import Any, Final, NoReturn, cast

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.slices import Chunk, FileSlice
from moldau.wire.fields import FIXED_CODES, Field, MessageType, StructType
from moldau.wire.source_writer import SourceWriter
from moldau.wire.varint import write_uvarint

RECORDS_COPIED_BYTES_MAX = 4096
"""Records up to this size are copied into the surrounding chunk: cheaper than one more send."""

_PARTS_PER_CHUNK: Final = 16_384
"""Of a message that is encoded in steps: to join all its parts at the end would take too long."""

BYTES = [bytes((value,)) for value in range(128)]
"""Compact lengths that fit one byte: a lookup takes a fourth of the time of packing."""


def _unsupported(name: str, version: int) -> NoReturn:
    raise RefusedError(
        ErrorCode.UNSUPPORTED_VERSION, f"{name} is set, but not supported in version {version}"
    )


def _uuid_size(value: bytes) -> NoReturn:
    raise ValueError(f"a uuid must have 16 bytes, not {len(value)}")


def _pack_structs(code: str) -> Callable[..., bytes]:
    """A function that packs a list of fixed-size values of any length."""
    ready = [struct.Struct(f">{count}{code}").pack for count in range(9)]

    def pack(values: list[Any]) -> bytes:
        count = len(values)
        if count < 9:
            return ready[count](*values)
        return struct.pack(f">{count}{code}", *values)

    return pack


class EncoderWriter(SourceWriter):
    """Generates the source of one encode function."""

    def __init__(self, version: int, *, flexible: bool, in_steps: bool = False) -> None:
        super().__init__(version, flexible=flexible)
        self._in_steps = in_steps
        self.write = "w"
        self.names |= {
            "uvarint": write_uvarint,
            "join": b"".join,
            "byte": BYTES,
            "unsupported": _unsupported,
            "uuid_size": _uuid_size,
            "FileSlice": FileSlice,
            "BadValue": (struct.error, AttributeError, TypeError),
        }

    # -- runs of fixed-size values

    def put(self, expression: str, code: str) -> None:
        """Add to the fixed-size values that the next flush packs at once."""
        self._run.append((expression, code))

    def packed(self, run: list[tuple[str, str]]) -> str:
        """The expression for the bytes of a run; a code x is a zero byte without a value."""
        layout = struct.Struct(">" + "".join(code for _, code in run))
        arguments = ", ".join(expression for expression, code in run if code != "x")
        if not arguments:
            return repr(bytes(layout.size))
        return f"{self.constant('pack', layout.pack)}({arguments})"

    def flush(self) -> None:
        run, self._run = self._run, []
        if run:
            self.line(f"{self.write}({self.packed(run)})")

    def put_length(self, length: str, kind: str) -> None:
        """Write a length (compact: already one more) after the pending fixed-size values."""
        if not self.flexible:
            self.put(length, "h" if kind == "string" else "i")
            self.flush()
            return
        run, self._run = self._run, []
        short = self.packed([*run, (length, "B")]) if run else f"byte[{length}]"
        self.line(f"if {length} < 128: {self.write}({short})")
        before = f"{self.packed(run)} + " if run else ""
        self.line(f"else: {self.write}({before}uvarint({length}))")

    # -- fields

    def variable(self, source: str, kind: str, *, nullable: bool) -> None:
        value, length = self.fresh("v"), self.fresh("n")
        plus = " + 1" if self.flexible else ""
        encoded = f"{source}.encode()" if kind == "string" else source
        if nullable:
            # Null records have no bytes after the length, like an empty string.
            self.line(f"{value} = {source}")
            self.line(f"if {value} is None: {value} = b''; {length} = {0 if plus else -1}")
            conversion = f"{value} = {value}.encode(); " if kind == "string" else ""
            self.line(f"else: {conversion}{length} = len({value}){plus}")
        else:
            self.line(f"{value} = {encoded}; {length} = len({value}){plus}")
        self.put_length(length, kind)
        if kind == "records":
            self.line(f"if {length} > {RECORDS_COPIED_BYTES_MAX} or type({value}) is FileSlice:")
            self.line("    chunks += (join(parts), " + value + "); parts.clear()")
            self.line(f"elif {value}: {self.write}({value})")
        elif nullable:
            self.line(f"if {value}: {self.write}({value})")
        else:
            self.line(f"{self.write}({value})")

    def array(self, source: str, field: Field) -> None:
        value, length = self.fresh("v"), self.fresh("n")
        plus = " + 1" if self.flexible else ""
        self.line(f"{value} = {source}")
        if self.version in field.nullable:
            self.line(f"if {value} is None: {value} = (); {length} = {0 if plus else -1}")
            self.line(f"else: {length} = len({value}){plus}")
        else:
            self.line(f"{length} = len({value}){plus}")
        self.put_length(length, "array")
        if isinstance(field.element, str):
            self.primitives(value, field.element)
        elif field.element is not None:
            item = self.fresh("o")
            self.line(f"for {item} in {value}:")
            self.depth += 1
            if self._in_steps:
                self.line("yield")
                self.line(f"if len(parts) >= {_PARTS_PER_CHUNK}:")
                self.line("    chunks.append(join(parts)); parts.clear()")
            self.struct(item, field.element)
            self.flush()
            self.depth -= 1

    def primitives(self, value: str, kind: str) -> None:
        code = FIXED_CODES.get(kind)
        if code is not None and code != "16s":
            pack = self.constant("pack", _pack_structs(code))
            self.line(f"if {value}: {self.write}({pack}({value}))")
            return
        item = self.fresh("i")
        self.line(f"for {item} in {value}:")
        self.depth += 1
        if kind == "uuid":
            self.uuid(item)
            self.flush()
        else:
            self.variable(item, kind, nullable=False)
        self.depth -= 1

    def uuid(self, source: str) -> None:
        # struct would silently truncate or pad a wrong size.
        value = self.fresh("u")
        self.line(f"{value} = {source}")
        self.line(f"if len({value}) != 16: uuid_size({value})")
        self.put(value, "16s")

    def nested(self, source: str, field: Field) -> None:
        element = cast("StructType", field.element)
        value = self.fresh("o")
        if self.version not in field.nullable:
            self.line(f"{value} = {source}")
            self.struct(value, element)
            return
        self.flush()
        self.line(f"{value} = {source}")
        self.line(f"if {value} is None: {self.write}(b'\\xff')")
        self.line("else:")
        self.depth += 1
        self.put("1", "b")
        self.struct(value, element)
        self.flush()
        self.depth -= 1

    def field(self, source: str, field: Field) -> None:
        if field.kind == "uuid":
            self.uuid(source)
        elif field.kind in FIXED_CODES:
            self.put(source, FIXED_CODES[field.kind])
        elif field.kind == "array":
            self.array(source, field)
        elif field.kind == "struct":
            self.nested(source, field)
        else:
            self.variable(source, field.kind, nullable=self.version in field.nullable)

    def struct(self, var: str, cls: StructType) -> None:
        tagged: list[tuple[str, Field]] = []
        for name, field in cls.FIELDS.items():
            source = f"{var}.{name}"
            if self.version in field.tagged:
                tagged.append((name, field))
            elif self.version in field.versions:
                self.field(source, field)
            elif not field.ignorable:
                self.line(
                    f"if {self.differs(source, field)}: unsupported({name!r}, {self.version})"
                )
        if not self.flexible:
            return
        if tagged:
            self.tags(var, tagged)
        else:
            self.put("", "x")

    def differs(self, source: str, field: Field) -> str:
        """The condition that a field differs from its default."""
        value = field.absent_value
        if value is None:
            return f"{source} is not None"
        if value == () or value is False or value == "" or value == b"" or value == 0:
            return source
        if value is True:
            return f"not {source}"
        if isinstance(value, int | str):
            return f"{source} != {value!r}"
        return f"{source} != {self.constant('absent', value)}"

    def tags(self, var: str, tagged: list[tuple[str, Field]]) -> None:
        count, body = self.fresh("c"), self.fresh("b")
        ordered = sorted(tagged, key=lambda item: item[1].tag)
        conditions = [self.differs(f"{var}.{name}", field) for name, field in ordered]
        before, self._run = self._run, []
        outer = self.write
        self.line(f"if {' or '.join(conditions)}:")
        self.depth += 1
        self.line(f"{count} = 0; {body} = b''")
        for (name, field), condition in zip(ordered, conditions, strict=True):
            parts, content = self.fresh("p"), self.fresh("t")
            self.line(f"if {condition}:")
            self.depth += 1
            self.line(f"{parts} = []")
            self.write = f"{parts}.append"
            self.field(f"{var}.{name}", field)
            self.flush()
            self.line(f"{content} = join({parts}); {count} += 1")
            self.line(
                f"{body} += {write_uvarint(field.tag)!r} + uvarint(len({content})) + {content}"
            )
            self.depth -= 1
        self.write = outer
        self.line(f"{self.write}({self.packed([*before, (count, 'B')])} + {body})")
        self.depth -= 1
        self.line(f"else: {self.write}({self.packed([*before, ('', 'x')])})")


def encoder_source(
    cls: MessageType, version: int, *, in_steps: bool = False
) -> tuple[str, dict[str, object]]:
    """The source of the function and the names that it uses."""
    writer = EncoderWriter(version, flexible=version >= cls.FLEXIBLE, in_steps=in_steps)
    writer.struct("message", cls)
    writer.flush()
    source = "\n".join(
        [
            "def encode(message):",
            "    chunks = []; parts = []; w = parts.append",
            "    try:",
            *(writer.lines or ["        pass"]),
            "    except BadValue as error:",
            f"        raise ValueError(f'{cls.__name__} v{version}: {{error}}') from error",
            "    if parts or not chunks: chunks.append(join(parts))",
            # A generator, also if the message has no arrays.
            *(["    yield"] if in_steps else []),
            "    return chunks",
        ]
    )
    return source, writer.names


def compile_encoder(cls: MessageType, version: int) -> Callable[[Any], list[Chunk]]:
    source, names = encoder_source(cls, version)
    exec(compile(source, f"<{cls.__name__}.encode v{version}>", "exec"), names)
    return cast("Callable[[Any], list[Chunk]]", names["encode"])


@cache
def compile_step_encoder(
    cls: MessageType, version: int
) -> Callable[[Any], Generator[None, None, list[Chunk]]]:
    source, names = encoder_source(cls, version, in_steps=True)
    exec(compile(source, f"<{cls.__name__}.encode_in_steps v{version}>", "exec"), names)
    return cast("Callable[[Any], Generator[None, None, list[Chunk]]]", names["encode"])
