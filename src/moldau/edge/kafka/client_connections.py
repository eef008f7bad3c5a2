"""What a broker shows of the connections of Kafka clients."""

from moldau.api.connections import ConnectionShown
from moldau.net.connection import Connection
from moldau.security.principal import ANONYMOUS, Principal


def shown(
    connection: Connection, principal: Principal | None, listener: str, now: float, wall_ms: int
) -> ConnectionShown:
    """`now` is by the clock of the connection, `wall_ms` the same time for people."""
    traffic = connection.traffic
    return ConnectionShown(
        client_id=traffic.client_id,
        software=traffic.software,
        version=traffic.version,
        user="" if principal is None or principal == ANONYMOUS else principal.name,
        address=connection.address,
        listener=listener,
        protocol="kafka",
        opened_at_ms=wall_ms - int((now - traffic.opened_at) * 1000),
        requests=traffic.requests,
        bytes_in=traffic.bytes_in,
        bytes_out=connection.enqueued_bytes,
        throttled_ms=int(traffic.throttled_seconds(now) * 1000),
        errors=traffic.errors,
        idle_ms=max(0, int((now - connection.active_at) * 1000)),
    )
