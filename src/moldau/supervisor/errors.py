"""The error that the supervisor and its files raise."""

from moldau.model.errors import MoldauError
from moldau.model.exit_codes import ExitCode


class SupervisorError(MoldauError):
    """What failed, what to do next, and the exit code of a command that fails with it."""

    def __init__(self, message: str, *, hint: str = "", code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code
