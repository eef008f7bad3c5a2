"""Errors of commands, and the exit code of every error."""

from moldau.client.errors import NotFoundError, UnreachableError
from moldau.model.errors import ConfigError, CorruptionError, MoldauError, StorageError
from moldau.model.exit_codes import ExitCode
from moldau.supervisor.errors import SupervisorError

__all__ = ["CommandError", "ExitCode", "exit_code"]


class CommandError(MoldauError):
    """A command failed: why, and in `hint` the next step."""

    def __init__(self, message: str, *, hint: str = "", code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


def exit_code(error: MoldauError) -> ExitCode:
    """The exit code of a command that fails with this error."""
    if isinstance(error, CommandError | SupervisorError):
        return error.code
    if isinstance(error, ConfigError):
        return ExitCode.CONFIG
    if isinstance(error, StorageError | CorruptionError):
        return ExitCode.STORAGE
    if isinstance(error, UnreachableError):
        return ExitCode.UNREACHABLE
    if isinstance(error, NotFoundError):
        return ExitCode.NOT_FOUND
    return ExitCode.FAILED
