"""/api/v1/play: faults on purpose, on a cluster that was started to be played with."""

from enum import Enum
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.types import INT_MAX
from moldau.edge.http.operation import Operation
from moldau.edge.http.query_parameters import parse_int
from moldau.edge.http.responses import check_query, read_body, respond
from moldau.edge.http.visits import session_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.play import (
    DELAY_MS_MAX,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    PlayAction,
    PlayBoard,
    PlayKind,
)

BrokerNumber = Annotated[int, Meta(ge=0, le=INT_MAX)]


class BrokerAction(Enum):
    KILL = "kill"
    PAUSE = "pause"
    RESUME = "resume"
    RESTART = "restart"


class BrokerPlayWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    action: BrokerAction
    seconds: Annotated[int, Meta(ge=1, le=PAUSE_SECONDS_MAX)] = PAUSE_SECONDS
    """Of a pause."""


class LinkPlayWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    a: BrokerNumber
    b: BrokerNumber
    is_cut: bool


class DiskPlayWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    broker: BrokerNumber
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MS_MAX)]
    """Of each flush; 0: none."""


class HealPlayWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An empty object."""


_broker_wanted: Final = msgspec.json.Decoder(BrokerPlayWanted)
_link_wanted: Final = msgspec.json.Decoder(LinkPlayWanted)
_disk_wanted: Final = msgspec.json.Decoder(DiskPlayWanted)
_heal_wanted: Final = msgspec.json.Decoder(HealPlayWanted)

PLAY_OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("GET", "/api/v1/play"): Operation(
        "showPlay",
        "Faults on purpose, where the cluster was started to be played with",
        {200: PlayBoard},
        {},
        refusals=(404,),
    ),
    ("POST", "/api/v1/play/brokers/{broker}"): Operation(
        "playWithBroker",
        "Kill, pause, resume or restart a broker",
        {200: PlayBoard},
        {},
        body=BrokerPlayWanted,
        refusals=(404,),
    ),
    ("POST", "/api/v1/play/links"): Operation(
        "playWithLink",
        "Cut the link between two brokers, or mend it",
        {200: PlayBoard},
        {},
        body=LinkPlayWanted,
        refusals=(404,),
    ),
    ("POST", "/api/v1/play/disks"): Operation(
        "playWithDisk",
        "Delay each flush of a broker; 0 ends it",
        {200: PlayBoard},
        {},
        body=DiskPlayWanted,
        refusals=(404,),
    ),
    ("POST", "/api/v1/play/heal"): Operation(
        "endPlay",
        "End all faults, and start the brokers that are down",
        {200: PlayBoard},
        {},
        body=HealPlayWanted,
        refusals=(404,),
    ),
}


def routes() -> list[Route]:
    async def show(request: Request) -> Response:
        check_query(request)
        return respond(await session_of(request).play.board())

    async def brokers(request: Request) -> Response:
        check_query(request)
        wanted = await read_body(request, _broker_wanted.decode)
        text = request.path_params["broker"]
        number = parse_int(text)
        if number is None:
            raise RefusedError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Unknown broker {text}")
        kind = PlayKind(wanted.action.value)
        action = PlayAction(kind=kind, by=_by(request), broker=number, seconds=wanted.seconds)
        return await _done(request, action)

    async def links(request: Request) -> Response:
        check_query(request)
        wanted = await read_body(request, _link_wanted.decode)
        a, b = sorted((wanted.a, wanted.b))
        action = PlayAction(
            kind=PlayKind.LINK, by=_by(request), broker=a, other=b, is_cut=wanted.is_cut
        )
        return await _done(request, action)

    async def disks(request: Request) -> Response:
        check_query(request)
        wanted = await read_body(request, _disk_wanted.decode)
        slow = wanted.delay_ms
        action = PlayAction(
            kind=PlayKind.DISK, by=_by(request), broker=wanted.broker, delay_ms=slow
        )
        return await _done(request, action)

    async def heal(request: Request) -> Response:
        check_query(request)
        await read_body(request, _heal_wanted.decode)
        return await _done(request, PlayAction(kind=PlayKind.HEAL, by=_by(request)))

    return [
        Route("/api/v1/play", show, methods=["GET"]),
        Route("/api/v1/play/brokers/{broker}", brokers, methods=["POST"]),
        Route("/api/v1/play/links", links, methods=["POST"]),
        Route("/api/v1/play/disks", disks, methods=["POST"]),
        Route("/api/v1/play/heal", heal, methods=["POST"]),
    ]


def _by(request: Request) -> str:
    session = session_of(request)
    return f"{session.principal} at {session.host}"


async def _done(request: Request, action: PlayAction) -> Response:
    return respond(await session_of(request).play.do(action))
