"""Random messages for the tests of the codec, made from the tables of fields."""

import random
import string as letters
from collections.abc import Callable
from typing import Any

import pytest

from moldau.wire.fields import Field
from moldau.wire.schema import Message

INTEGERS = {"i8": 7, "i16": 15, "i32": 31, "i64": 63}


class MessageMaker:
    """Makes instances that a given version can carry; the same seed gives the same instances."""

    def __init__(self, seed: object) -> None:
        self.rng = random.Random(str(seed))

    def text(self) -> str:
        size = self.rng.choice((0, 1, 3, 12, 40, 126, 127, 128, 300))
        alphabet = letters.ascii_letters + "äß€漢😀"
        return "".join(self.rng.choices(alphabet, k=size))

    def octets(self) -> bytes:
        return self.rng.randbytes(self.rng.choice((0, 1, 5, 126, 127, 128, 1000)))

    def primitive(self, kind: str, name: str) -> Any:
        if kind == "bool":
            return self.rng.random() < 0.5
        if kind == "f64":
            return self.rng.uniform(-1e9, 1e9)
        if kind == "uuid":
            return self.rng.randbytes(16)
        if kind == "string":
            return self.text()
        if kind == "bytes":
            return self.octets()
        if kind == "records":
            return self.rng.randbytes(self.rng.choice((0, 61, 126, 127, 128, 4096, 5000)))
        if "error_code" in name:
            # One oracle knows error codes as an enumeration and refuses others.
            return self.rng.randrange(0, 100)
        bits = INTEGERS[kind]
        if "timestamp" in name or name.endswith("_ms"):
            # The same oracle turns these into dates and durations with limits of their own.
            return self.rng.randrange(0, 1 << min(bits, 40))
        low = -(1 << bits)
        return self.rng.choice((0, 1, -1, low, (1 << bits) - 1, 7)) or (
            self.rng.randrange(low, 1 << bits)
        )

    def array(self, field: Field, name: str, version: int) -> list[Any]:
        if isinstance(field.element, str):
            count = self.rng.choice((0, 1, 3, 9, 130))
            return [self.primitive(field.element, name) for _ in range(count)]
        count = self.rng.choice((0, 1, 1, 2, 3))
        return [self.struct(field.element, version) for _ in range(count)]

    def value(self, field: Field, name: str, version: int) -> Any:
        if version in field.nullable and self.rng.random() < 0.3:
            return None
        if field.kind == "array":
            return self.array(field, name, version)
        if field.kind == "struct":
            return self.struct(field.element, version)
        return self.primitive(field.kind, name)

    def struct(self, cls: Any, version: int) -> Any:
        values = {}
        for name, field in cls.FIELDS.items():
            if version not in field.versions:
                absent = field.absent_value
                values[name] = [] if absent == () else absent
            elif version in field.tagged and self.rng.random() < 0.5:
                values[name] = [] if field.default == () else field.default
            else:
                values[name] = self.value(field, name, version)
            if version in field.tagged and field.kind == "struct" and values[name] is not None:
                # Others do not send a struct whose every field is the default; we do.
                element: Any = field.element
                first = next(iter(element.FIELDS))
                setattr(values[name], first, 77)
        return cls(**values)


@pytest.fixture
def make_message() -> Callable[[type[Message], int, object], Any]:
    def make(cls: type[Message], version: int, seed: object) -> Any:
        return MessageMaker(f"{cls.__name__}/{version}/{seed}").struct(cls, version)

    return make
