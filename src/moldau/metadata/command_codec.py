"""Encodes commands for the RPC to the metadata leader."""

import typing
from typing import Final

import msgspec

from moldau.metadata.commands import Command
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.malformed import MALFORMED

_KINDS: Final = {kind.__name__: kind for kind in typing.get_args(Command)}
_envelope: Final = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


def encode_command(command: Command) -> bytes:
    """The class name, then the fields by name: later versions may add fields with defaults."""
    return msgspec.msgpack.encode((type(command).__name__, command))


def decode_command(payload: bytes) -> Command:
    """Raises RefusedError if this version does not know the command."""
    try:
        name, fields = _envelope.decode(payload)
        kind = _KINDS.get(name)
        if kind is None:
            raise RefusedError(ErrorCode.UNSUPPORTED_VERSION, f"unknown command {name!r}")
        command: Command = msgspec.msgpack.decode(fields, type=kind)
    except MALFORMED as error:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"invalid command: {error}") from None
    return command
