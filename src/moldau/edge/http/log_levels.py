"""/api/v1/brokers/{broker}/log-levels: shows and sets the levels of a broker's log."""

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moldau.api.session import Session
from moldau.api.types import ConfigChange, ConfigOperation, ResourceKind
from moldau.edge.http.methods import by_method
from moldau.edge.http.query_parameters import parse_int
from moldau.edge.http.relay.asking import relay_to
from moldau.edge.http.responses import check_query, read_body, respond
from moldau.edge.http.visits import session_of
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.topology import LogLevelList, LogLevelShown, LogLevelsWanted

_levels_wanted: Final = msgspec.json.Decoder(LogLevelsWanted)


def routes() -> list[Route]:

    async def show(request: Request) -> Response:
        check_query(request)
        session = session_of(request)
        broker = _broker(session, request)
        if broker != session.broker_id:
            return relay_to(request, broker)
        return _shown(session)

    async def change(request: Request) -> Response:
        check_query(request)
        session = session_of(request)
        broker = _broker(session, request)
        if broker != session.broker_id:
            return relay_to(request, broker)
        wanted = await read_body(request, _levels_wanted.decode)
        await session.configs.alter(
            ResourceKind.BROKER_LOGGER,
            str(broker),
            [_change(name, level) for name, level in wanted.levels.items()],
            validate_only=False,
        )
        return _shown(session)

    return [by_method("/api/v1/brokers/{broker}/log-levels", GET=show, POST=change)]


def _broker(session: Session, request: Request) -> int:
    """Levels belong to a process, and only it can tell or change them. Raises RefusedError."""
    text = request.path_params["broker"]
    number = parse_int(text)
    if number is None or number not in {*session.cluster.brokers, session.broker_id}:
        raise RefusedError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Unknown broker {text}")
    return number


def _change(component: str, level: str | None) -> ConfigChange:
    operation = ConfigOperation.DELETE if level is None else ConfigOperation.SET
    return ConfigChange(name=component, operation=operation, value=level)


def _shown(session: Session) -> Response:
    broker = session.broker_id
    entries = session.configs.describe(ResourceKind.BROKER_LOGGER, str(broker))
    levels = tuple(
        LogLevelShown(
            component=entry.name,
            level=entry.value or "",
            configured=entry.synonyms[0].value or "",
            about=entry.documentation,
        )
        for entry in entries
    )
    return respond(LogLevelList(broker=broker, levels=levels))
