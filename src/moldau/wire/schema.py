"""The base classes of messages: declared fields become slots, constructor and codec.

A subclass of Struct is both the schema and the static type. Code is generated on first use, because
a broker declares hundreds of messages and uses a few: the constructor at the first instance, the
codec of a version at the first encode or decode of that version.
"""

from collections.abc import Callable, Generator
from typing import Any, ClassVar, Self, cast, dataclass_transform

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.slices import Chunk
from moldau.wire import fields as f
from moldau.wire.fields import Field, Versions


class StructMeta(type):
    """Turns declared fields into slots, and stores them in `FIELDS`."""

    FIELDS: dict[str, Field]
    ELEMENTS_MAX: int

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, object],
        **_: object,
    ) -> "StructMeta":
        declared = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        for key in declared:
            del namespace[key]
        namespace.setdefault("__slots__", tuple(declared))
        namespace["FIELDS"] = declared
        return super().__new__(mcs, name, bases, namespace)

    def __init__(
        cls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, object],
        *,
        key: int = -1,
        versions: tuple[int, int] = (0, f.VERSION_MAX),
        flexible: int | None = None,
    ) -> None:
        super().__init__(name, bases, namespace)
        cls.API_KEY = key
        cls.VERSIONS = Versions(*versions)
        cls.FLEXIBLE = f.VERSION_MAX + 1 if flexible is None else flexible
        cls.DECODERS: dict[int, Any] = {}
        cls.ENCODERS: dict[int, Any] = {}


def compile_constructor(cls: StructMeta) -> Callable[..., None]:
    """Generate `__init__`: keywords only, required if the field has no default."""
    parameters: list[str] = []
    lines: list[str] = []
    names: dict[str, object] = {"EMPTY": f.MISSING}
    for name, declared in cls.FIELDS.items():
        value = name
        if declared.required:
            parameters.append(name)
        elif declared.default == ():
            parameters.append(f"{name}=EMPTY")
            # A fresh list for each instance: callers append to it.
            value = f"[] if {name} is EMPTY else {name}"
        else:
            names[f"default_{name}"] = declared.default
            parameters.append(f"{name}=default_{name}")
        lines.append(f"    self.{name} = {value}")
    keywords = f", *, {', '.join(parameters)}" if parameters else ""
    source = "\n".join([f"def __init__(self{keywords}):", *(lines or ["    pass"])])
    exec(compile(source, f"<{cls.__name__}.__init__>", "exec"), names)
    return cast("Callable[..., None]", names["__init__"])


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        f.boolean,
        f.i8,
        f.i16,
        f.i32,
        f.i64,
        f.f64,
        f.uuid,
        f.string,
        f.octets,
        f.records,
        f.array,
        f.struct,
    ),
)
class Struct(metaclass=StructMeta):
    """A group of fields. Mutable, compared by value, not hashable."""

    __slots__ = ()
    FIELDS: ClassVar[dict[str, Field]]

    def __init__(self, **values: object) -> None:
        # The first instance of the class: later ones call the generated function.
        cls = type(self)
        constructor = compile_constructor(cls)
        type.__setattr__(cls, "__init__", constructor)
        constructor(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self).FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self).FIELDS)
        return f"{type(self).__name__}({inside})"


class Message(Struct):
    """A whole request or response body."""

    __slots__ = ()
    API_KEY: ClassVar[int]
    VERSIONS: ClassVar[Versions]
    """First and last supported version."""
    FLEXIBLE: ClassVar[int]
    """First version with compact lengths and tagged fields."""
    ELEMENTS_MAX: ClassVar[int] = 1 << 18
    """Of all arrays together: an element of two bytes becomes an object of eighty, so the frame
    limit alone would allow many gigabytes, and seconds of work at once."""
    DECODERS: ClassVar[dict[int, Callable[[memoryview, int], Any]]]
    ENCODERS: ClassVar[dict[int, Callable[[Any], list[Chunk]]]]

    @classmethod
    def decode(cls, data: memoryview, version: int, position: int = 0) -> Self:
        """Read a body from `data` at `position`. Raises PeerProtocolError."""
        decoder = cls.DECODERS.get(version)
        if decoder is None:
            decoder = cls._compile_decoder(version)
        return cast("Self", decoder(data, position))

    def encode(self, version: int) -> list[Chunk]:
        """The body as chunks; large records are chunks of their own, not copied.

        Raises RefusedError(UNSUPPORTED_VERSION) if a field is set that this version does not have,
        and ValueError if a value does not fit its field.
        """
        encoder = self.ENCODERS.get(version)
        if encoder is None:
            encoder = self._compile_encoder(version)
        return encoder(self)

    def encode_in_steps(self, version: int) -> Generator[None, None, list[Chunk]]:
        """As `encode`, for a message with many elements: it yields after each."""
        from moldau.wire.encoder import compile_step_encoder

        self.check_version(version)
        return compile_step_encoder(type(self), version)(self)

    @classmethod
    def _compile_decoder(cls, version: int) -> Callable[[memoryview, int], Any]:
        # On first use: most programs need the codecs of a few messages only.
        from moldau.wire.decoder import compile_decoder

        cls.check_version(version)
        decoder = cls.DECODERS[version] = compile_decoder(cls, version)
        return decoder

    @classmethod
    def _compile_encoder(cls, version: int) -> Callable[[Any], list[Chunk]]:
        from moldau.wire.encoder import compile_encoder

        cls.check_version(version)
        encoder = cls.ENCODERS[version] = compile_encoder(cls, version)
        return encoder

    @classmethod
    def check_version(cls, version: int) -> None:
        if version not in cls.VERSIONS:
            first, last = cls.VERSIONS
            raise RefusedError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{cls.__name__} version {version} is not supported, only {first} to {last}",
            )


class Request(Message):
    """The body of a request."""

    __slots__ = ()
    # Less than of a response: a broker decodes it in one turn of its event loop. Enough for 10,000
    # partitions, each in a topic of its own: a broker refuses more of them anyway.
    ELEMENTS_MAX = 20_480


class Response(Message):
    """The body of a response."""

    __slots__ = ()
