"""Owns the way to another broker: what only that one can answer is asked there by the client.

The answer is 307, which keeps method and body; `curl -L` and every library follow it by themselves.
"""

from starlette.requests import Request
from starlette.responses import Response

from moldau.api.broker import Broker
from moldau.edge.http.responses import answer
from moldau.model.errors import ErrorCode, RefusedError
from moldau.model.ids import BrokerId


def redirect_to(broker: Broker, other: int, request: Request) -> Response:
    """To the same address on that broker. Raises RefusedError if it has none."""
    known = broker.image.brokers.get(BrokerId(other))
    if known is None or known.http is None:
        raise RefusedError(
            ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {other} is to be asked, and not to be found"
        )
    if other not in broker.cluster.alive:
        # The address of one that died would be of no use; who follows it is elected soon.
        raise RefusedError(
            ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {other} is to be asked, and is not heard of"
        )
    host = f"[{known.http.host}]" if ":" in known.http.host else known.http.host
    # As it came: what the client has quoted stays quoted.
    path = request.scope.get("raw_path", b"").decode("ascii", "replace") or request.scope["path"]
    query = request.scope["query_string"].decode("ascii", "replace")
    target = f"http://{host}:{known.http.port}{path}" + (f"?{query}" if query else "")
    return answer({"broker": other, "location": target}, 307, {"location": target})
