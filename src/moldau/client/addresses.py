"""Parses broker addresses. A module of its own, because importing it must be cheap."""

from moldau.client.errors import ClientError

_KAFKA_PORT = 9092


def split_brokers(brokers: str, *, port_default: int = _KAFKA_PORT) -> list[tuple[str, int]]:
    """HOST:PORT[,HOST:PORT…] as pairs; :PORT is a port of localhost. Raises ClientError."""
    pairs: list[tuple[str, int]] = []
    for part in with_localhost(brokers).split(","):
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


def with_localhost(addresses: str) -> str:
    """The addresses with localhost as the host of every :PORT."""
    parts = (part.strip() for part in addresses.split(","))
    return ",".join(f"localhost{part}" if part.startswith(":") else part for part in parts)
