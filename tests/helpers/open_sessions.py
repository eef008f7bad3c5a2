"""Sessions that may do everything, over the parts of a broker that a test puts there."""

from types import SimpleNamespace
from typing import Any

from moldau.api.broker import Broker
from moldau.api.entrance import Entrance
from moldau.api.session import Session, Sessions
from moldau.server.clock import SystemClock


def broker_with(**parts: Any) -> Any:
    """A broker of these parts; the others have nothing that could be called."""
    missing: dict[str, Any] = {name: SimpleNamespace() for name in Broker.__struct_fields__}
    return SimpleNamespace(
        **{**missing, "image": SimpleNamespace(), "clock": SystemClock(), **parts}
    )


def entrance_to(broker: Any) -> Entrance:
    """To a broker without users, where everyone may do everything."""
    return Entrance(Sessions(broker))


def session_over(**parts: Any) -> Session:
    return Sessions(broker_with(**parts)).anonymous("127.0.0.1")
