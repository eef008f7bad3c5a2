"""Parses broker addresses. A module of its own, because importing it must be cheap."""

from moldau.client.errors import ClientError

_KAFKA_PORT = 9092


def split_brokers(brokers: str, *, port_default: int = _KAFKA_PORT) -> list[tuple[str, int]]:
    """HOST:PORT[,HOST:PORT…] as pairs. Raises ClientError for an invalid address."""
    pairs: list[tuple[str, int]] = []
    for part in (part.strip() for part in brokers.split(",")):
        if not part:
            continue
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, str(port_default)
        if not (port.isascii() and port.isdigit() and 0 < int(port) <= 65535) or not host:
            raise ClientError(f"invalid broker address {part!r}", hint="write HOST:PORT")
        pairs.append((host.strip("[]"), int(port)))
    if not pairs:
        raise ClientError("no broker address given", hint="write HOST:PORT, or set MOLDAU_BROKERS")
    return pairs
