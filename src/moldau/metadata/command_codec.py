"""Owns commands as bytes, for the way from the broker that was asked to the one that decides."""

import typing
from typing import Final

import msgspec

from moldau.metadata.commands import Command
from moldau.model.errors import ErrorCode, RefusedError

_KINDS: Final = {kind.__name__: kind for kind in typing.get_args(Command)}
_envelope: Final = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


def encode_command(command: Command) -> bytes:
    """The command's name, then its fields by name: a later version may add some with defaults."""
    return msgspec.msgpack.encode((type(command).__name__, command))


def decode_command(payload: bytes) -> Command:
    """Raises RefusedError for what this version does not know."""
    try:
        name, fields = _envelope.decode(payload)
        kind = _KINDS.get(name)
        if kind is None:
            raise RefusedError(ErrorCode.UNSUPPORTED_VERSION, f"command {name!r} is not known here")
        command: Command = msgspec.msgpack.decode(fields, type=kind)
    except msgspec.MsgspecError as error:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"a command that cannot be read: {error}"
        ) from None
    return command
