"""How a broker plays: by its supervisor, or, where there is none, alone.

Only the supervisor signals processes: a broker asks for it through the control socket.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.exit_codes import ExitCode
from moldau.model.play import (
    NO_FAULTS,
    PlayAction,
    PlayBoard,
    PlayedBroker,
    PlayFaults,
    PlayKind,
    SlowDisk,
)
from moldau.supervisor.control import send_request, state_of
from moldau.supervisor.errors import SupervisorError
from moldau.supervisor.play_faults import FaultsReader
from moldau.supervisor.state import load_state

_SOON_SECONDS: Final = 0.3
"""Until a broker that is to be killed or paused has answered the request for it."""
_ALONE: Final = (
    "This is one broker without a supervisor: it has no links to cut, and nobody would continue it "
    "after a pause, or start it again. For all of that: moldau cluster start"
)


class SupervisedPlay:
    """The playground of a broker of `moldau cluster start`; `directory` is the cluster's."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reader = FaultsReader(directory)

    def faults(self) -> PlayFaults:
        return self._reader.faults()

    async def board(self, me: int) -> PlayBoard:
        reply = await asyncio.to_thread(self._ask, "status", {})
        found, state = reply["play"], state_of(reply)
        left = {int(broker): ms for broker, ms in found["resumes_in_ms"].items()}
        faults = msgspec.convert(found["faults"], PlayFaults)
        return PlayBoard(
            answered_by=me,
            offers=tuple(PlayKind),
            about="",
            brokers=tuple(
                PlayedBroker(
                    id=member.id,
                    state=member.state,
                    reason=member.reason,
                    http=member.http,
                    resumes_in_ms=left.get(member.id),
                )
                for member in state.brokers
            ),
            links=faults.links,
            disks=faults.disks,
        )

    async def do(self, action: PlayAction, me: int) -> None:
        request: dict[str, Any] = {"by": action.by, "id": action.broker}
        match action.kind:
            case PlayKind.PAUSE:
                request["seconds"] = action.seconds
            case PlayKind.LINK:
                request |= {"other": action.other, "is_cut": action.is_cut}
            case PlayKind.DISK:
                request["delay_ms"] = action.delay_ms
            case _:
                pass
        if action.broker == me and action.kind in (PlayKind.KILL, PlayKind.PAUSE):
            request["after_seconds"] = _SOON_SECONDS
        await asyncio.to_thread(self._ask, action.kind.value, request)

    def _ask(self, verb: str, request: dict[str, Any]) -> dict[str, Any]:
        """Runs in a thread. Raises RefusedError."""
        try:
            state = load_state(self._directory)
            reply = None if state is None else send_request(state.control, verb, **request)
        except SupervisorError as failure:
            code = ErrorCode.INVALID_REQUEST
            if failure.code is ExitCode.NOT_FOUND:
                code = ErrorCode.BROKER_ID_NOT_REGISTERED
            raise _refused(code, str(failure), failure.hint) from None
        if reply is None:
            raise _refused(
                ErrorCode.BROKER_NOT_AVAILABLE,
                "The supervisor of this cluster does not run",
                "restart the cluster: moldau cluster stop, then moldau cluster start",
            )
        return reply


def _refused(code: ErrorCode, message: str, hint: str) -> RefusedError:
    error = RefusedError(code, message)
    error.hint = hint
    return error


class LonePlay:
    """The playground of `moldau dev`: one process, which nobody watches."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say`: tells who started it what it ends by."""
        self._say = say
        self._faults = NO_FAULTS

    def faults(self) -> PlayFaults:
        return self._faults

    async def board(self, me: int) -> PlayBoard:
        me_only = PlayedBroker(id=me, state="ready", reason="", http=None, resumes_in_ms=None)
        return PlayBoard(
            answered_by=me,
            offers=(PlayKind.KILL, PlayKind.DISK, PlayKind.HEAL),
            about=_ALONE,
            brokers=(me_only,),
            links=(),
            disks=self._faults.disks,
        )

    async def do(self, action: PlayAction, me: int) -> None:
        if action.kind is PlayKind.HEAL:
            self._faults = NO_FAULTS
            return
        if action.broker != me:
            raise _refused(
                ErrorCode.BROKER_ID_NOT_REGISTERED,
                f"there is no broker {action.broker} to play with",
                "GET /api/v1/play shows what there is",
            )
        match action.kind:
            case PlayKind.DISK:
                slow = (SlowDisk(broker=me, delay_ms=action.delay_ms),) if action.delay_ms else ()
                self._faults = replace(self._faults, disks=slow)
            case PlayKind.KILL:
                self._say(
                    f"killed, as requested by {printable(action.by)}; start it again: moldau dev"
                )
                loop = asyncio.get_running_loop()
                loop.call_later(_SOON_SECONDS, os.kill, os.getpid(), signal.SIGKILL)
            case _:
                raise _refused(ErrorCode.INVALID_REQUEST, _ALONE, "moldau cluster start")


def printable(text: str) -> str:
    """A name that a client chose, for a terminal."""
    return "".join(letter for letter in text[:200] if letter.isprintable())
