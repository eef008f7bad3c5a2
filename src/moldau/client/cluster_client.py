"""Client of a cluster's HTTP API: topology, readiness, joining and removing brokers.

Every broker can respond for the whole cluster, so addresses are tried in turn.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from moldau.client import http
from moldau.client.addresses import split_brokers
from moldau.client.errors import (
    ClientError,
    NotFoundError,
    RejectedError,
    TimedOutError,
    UnavailableError,
    UnreachableError,
    login_hint,
)
from moldau.client.protocols import Protocol, mismatch, protocol_at
from moldau.client.security import PLAIN_TEXT, Security, Tls, check_may_send
from moldau.model.backup import (
    ClusterCopy,
    QueueStates,
    Restored,
    RestoredTo,
    StartToRestore,
)
from moldau.model.broker_report import BrokerReport
from moldau.model.errors import ErrorCode
from moldau.model.topology import (
    BrokerActionRequest,
    BrokerActionResponse,
    Endpoint,
    ErrorReply,
    JoinChallenge,
    JoinTokenCreated,
    JoinTokenList,
    JoinTokenWanted,
    LogLevelList,
    LogLevelsWanted,
    ProvenJoinRequest,
    Readiness,
    RecoveryReply,
    RecoveryRequest,
    SealedJoinReply,
    TokenDeleted,
    Topology,
)

HTTP_PORT: Final = 8080
CALL_SECONDS_MAX: Final = 5.0

PROBE_SECONDS_MAX: Final = 1.0

HTTP_PORT_HINT: Final = (
    "use the HTTP address of a broker (http.addr, port 8080 by default), not its Kafka, gRPC or "
    "Raft address"
)
HTTP_HINT: Final = (
    "is that the HTTP address of a running broker (http.addr, 8080 by default)? "
    "list them: moldau cluster status"
)

TOPOLOGY_PATH: Final = "/api/v1/topology"
REPORT_PATH: Final = "/api/v1/report"
JOIN_PATH: Final = "/api/v1/cluster/join"
JOIN_CHALLENGE_PATH: Final = "/api/v1/cluster/join/challenge"
METRICS_PATH: Final = "/metrics"
CONSOLE_PATH: Final = "/ui/"
_LOG_LEVELS_PATH: Final = "/api/v1/brokers/{}/log-levels"
_TOKENS_PATH: Final = "/api/v1/cluster/tokens"
_BUSY: Final = 503
_SUCCESS: Final = (200, 201, 202)
LOGIN_PATH: Final = "/api/v1/login"
_UNAUTHORIZED: Final = 401
_encoder: Final = msgspec.json.Encoder()

T = TypeVar("T")


class LoginRequest(msgspec.Struct, frozen=True):
    """The repr shows no password."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"LoginRequest(user={self.user!r})"


class LoginReply(msgspec.Struct, frozen=True):
    """A token, and when it expires. The repr does not show it."""

    token: str
    expires_at_ms: int = 0

    def __repr__(self) -> str:
        return f"LoginReply(expires_at_ms={self.expires_at_ms})"


class ClusterClient:
    """Sends requests to the first of the cluster's HTTP addresses that responds."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        call_seconds_max: float = CALL_SECONDS_MAX,
        security: Security | Callable[[str], Security] = PLAIN_TEXT,
    ) -> None:
        """`addresses`: HOST:PORT each, with TLS if `security` has it; or http:// or https://.

        `security` may depend on the address. Raises ClientError for an invalid address.
        """
        self._addresses = [
            (host, port, secured)
            for address in addresses
            for given in [security if isinstance(security, Security) else security(address)]
            for secured, bare in [_scheme(address, given)]
            for host, port in split_brokers(bare, port_default=HTTP_PORT)
        ]
        if not self._addresses:
            split_brokers("")
        self._call_seconds_max = call_seconds_max

    # ---- queries

    def login(self, user: str, password: str) -> LoginReply:
        """Exchange a password for a token. Raises ClientError before it is sent in plain text."""
        for host, _, security in self._addresses:
            if security.tls is None:
                check_may_send(host, security.prefix)
        return self._request("POST", LOGIN_PATH, LoginRequest(user, password), LoginReply)

    def topology(self, topics: Sequence[str] = ()) -> Topology:
        """The cluster as one of its brokers sees it; with `topics`, only those."""
        query = "&".join(f"topic={quote(name, safe='')}" for name in topics)
        path = TOPOLOGY_PATH + (f"?{query}" if query else "")
        return self._request("GET", path, None, Topology)

    def ready(self) -> Readiness:
        """Whether the first broker that responds is ready to serve clients."""
        return self._request("GET", "/readyz", None, Readiness, expects=(200, _BUSY))

    def metrics(self) -> str:
        """The metrics of the first broker that responds, in the text format of Prometheus."""
        return self._send("GET", METRICS_PATH, None, _decode_text)

    def console(self) -> str:
        """The address of the web console at the first broker that responds."""

        def decode(response: http.HttpResponse, host: str, port: int) -> str:
            if response.status not in _SUCCESS:
                raise _error_of(response, host, port)
            tls = next(each.tls for *at, each in self._addresses if at == [host, port])
            return f"{'http' if tls is None else 'https'}://{Endpoint(host, port)}{CONSOLE_PATH}"

        return self._send("GET", CONSOLE_PATH, None, decode)

    def report(self, idle_ms: int | None = None) -> BrokerReport:
        """What only the first broker that responds knows of itself, and of its idle groups."""
        path = REPORT_PATH + ("" if idle_ms is None else f"?idle_ms={idle_ms}")
        return self._request("GET", path, None, BrokerReport)

    def log_levels(self, broker: int) -> LogLevelList:
        """Of the log of the broker at the address of this client."""
        return self._request("GET", _LOG_LEVELS_PATH.format(broker), None, LogLevelList)

    # ---- changes

    def set_log_levels(self, broker: int, levels: dict[str, str | None]) -> LogLevelList:
        """Until the process of the broker ends. None: as configured."""
        wanted = LogLevelsWanted(levels=levels)
        return self._request("POST", _LOG_LEVELS_PATH.format(broker), wanted, LogLevelList)

    def leave(self, broker: int) -> BrokerActionResponse:
        """Drain a broker. It leaves the cluster when it hosts no replica any more."""
        return self._change("leave", broker)

    def keep(self, broker: int) -> BrokerActionResponse:
        """Cancel `leave`, while the broker is still a member."""
        return self._change("keep", broker)

    def recover(self, wanted: RecoveryRequest) -> RecoveryReply:
        """Let partitions go on that lost a majority; with `dry_run` only tell which."""
        return self._request("POST", "/api/v1/cluster/recover", wanted, RecoveryReply)

    def create_join_token(self, lifetime_ms: int) -> JoinTokenCreated:
        """A token that one broker can join with."""
        wanted = JoinTokenWanted(lifetime_ms=lifetime_ms)
        return self._request("POST", _TOKENS_PATH, wanted, JoinTokenCreated)

    def join_tokens(self) -> JoinTokenList:
        return self._request("GET", _TOKENS_PATH, None, JoinTokenList)

    def delete_join_token(self, token_id: str) -> None:
        self._request("DELETE", f"{_TOKENS_PATH}/{quote(token_id, safe='')}", None, TokenDeleted)

    def join_challenge(self) -> JoinChallenge:
        """For brokers only: the first step of joining."""
        return self._request("GET", JOIN_CHALLENGE_PATH, None, JoinChallenge)

    def join(self, request: ProvenJoinRequest) -> SealedJoinReply:
        """For brokers only: join the cluster."""
        return self._request("POST", JOIN_PATH, request, SealedJoinReply)

    # ---- backups

    def backup_cluster(self) -> ClusterCopy:
        return self._request("GET", "/api/v1/backup/cluster", None, ClusterCopy)

    def backup_queue(self, group: str, topic: str) -> QueueStates:
        path = f"/api/v1/backup/queues/{quote(group, safe='')}/{quote(topic, safe='')}"
        return self._request("GET", path, None, QueueStates)

    def restore(self, what: str, body: msgspec.Struct) -> None:
        """`what` is the end of the path: cluster, queues or queue-groups."""
        self._request("POST", f"/api/v1/restore/{what}", body, Restored)

    def restore_start(self, wanted: StartToRestore) -> int:
        """At the leader of the partition, whose address this client has; and so the next."""
        return self._request("POST", "/api/v1/restore/starts", wanted, RestoredTo).offset

    def restore_batches(self, topic: str, partition: int, offset: int, run: bytes) -> int:
        """The new end of the partition."""
        path = f"/api/v1/restore/topics/{quote(topic, safe='')}/{partition}?offset={offset}"
        return self._request("POST", path, run, RestoredTo).offset

    # ---- requests

    def _change(self, action: str, broker: int) -> BrokerActionResponse:
        request = BrokerActionRequest(broker=broker)
        return self._request("POST", f"/api/v1/cluster/{action}", request, BrokerActionResponse)

    def _request(
        self,
        method: str,
        path: str,
        body: msgspec.Struct | bytes | None,
        reply: type[T],
        *,
        expects: tuple[int, ...] = _SUCCESS,
    ) -> T:
        def decode(response: http.HttpResponse, host: str, port: int) -> T:
            return decode_response(response, reply, host, port, expects)

        if isinstance(body, bytes):
            return self._send(method, path, body, decode, media_type="application/octet-stream")
        return self._send(method, path, None if body is None else _encoder.encode(body), decode)

    def _send(
        self,
        method: str,
        path: str,
        sent: bytes | None,
        decode: Callable[[http.HttpResponse, str, int], T],
        *,
        media_type: str = "application/json",
    ) -> T:
        unreachable: list[http.NoResponse] = []
        busy: UnavailableError | None = None
        for host, port, security in self._addresses:
            try:
                response = http.call(
                    host,
                    port,
                    method,
                    path,
                    sent,
                    seconds_max=self._call_seconds_max,
                    security=security,
                    media_type=media_type,
                )
            except http.NoResponse as error:
                unreachable.append(error)
                continue
            try:
                return decode(response, host, port)
            except UnavailableError as error:
                busy = error
        if busy is not None:
            # A broker responded with a reason: more useful than a list of unreachable addresses.
            raise busy
        raise self._unreachable(unreachable)

    def _unreachable(self, errors: list[http.NoResponse]) -> ClientError:
        if wrong := self._wrong_listener(errors):
            return UnreachableError(wrong, hint=HTTP_PORT_HINT)
        where = ", ".join(str(Endpoint(host, port)) for host, port, _ in self._addresses)
        why = ", ".join(dict.fromkeys(str(error) for error in errors))
        if all(isinstance(error, http.ResponseTimedOut) for error in errors):
            return TimedOutError(
                f"no response from {where} ({why})", hint="find the cause: moldau doctor"
            )
        return UnreachableError(f"cannot reach {where} ({why})", hint=HTTP_HINT)

    def _wrong_listener(self, errors: list[http.NoResponse]) -> str:
        """What listens at the first address, if that is known not to speak HTTP."""
        host, port, security = self._addresses[0]
        if security.tls is not None or not isinstance(errors[0], http.NotHttp):
            return ""
        try:
            found = protocol_at(host, port, Protocol.HTTP, PROBE_SECONDS_MAX)
        except OSError:
            return ""
        is_named = found in (Protocol.KAFKA, Protocol.GRPC)
        return f"{Endpoint(host, port)} is {mismatch(found, Protocol.HTTP)}" if is_named else ""


def _scheme(address: str, security: Security) -> tuple[Security, str]:
    """How to connect to an address, and the address without the scheme."""
    scheme, separator, rest = address.strip().rpartition("://")
    if separator and scheme not in ("http", "https"):
        raise ClientError(f"invalid address {address!r}", hint="write http:// or https://HOST:PORT")
    tls = security.tls
    if scheme == "https":
        tls = tls or Tls(prefix=security.prefix)
    elif scheme == "http":
        tls = None
    return replace(security, tls=tls), rest.rstrip("/")


def decode_response(
    response: http.HttpResponse,
    kind: type[T],
    host: str,
    port: int,
    expects: tuple[int, ...] = _SUCCESS,
) -> T:
    """Decode the response of a broker. Raises ClientError."""
    if response.status in expects:
        return _decode(response, kind, host, port)
    raise _error_of(response, host, port)


def _decode_text(response: http.HttpResponse, host: str, port: int) -> str:
    if response.status in _SUCCESS:
        return response.body.decode("utf-8", "replace")
    raise _error_of(response, host, port)


def _decode(response: http.HttpResponse, kind: type[T], host: str, port: int) -> T:
    if response.is_json:
        try:
            return msgspec.json.decode(response.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    raise ClientError(
        f"the response of {Endpoint(host, port)} is not one of a Moldau broker", hint=HTTP_HINT
    )


def _error_of(response: http.HttpResponse, host: str, port: int) -> ClientError:
    if response.status == _UNAUTHORIZED:
        try:
            detail = msgspec.json.decode(response.body, type=ErrorReply).detail
        except (msgspec.DecodeError, UnicodeDecodeError):
            # Of a proxy in front of the broker.
            detail = ""
        return RejectedError(
            f"{Endpoint(host, port)} requires a valid user and password, or token"
            + (f" ({detail})" if detail else ""),
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            hint=login_hint(detail),
        )
    reply = _decode(response, ErrorReply, host, port)
    code = ErrorCode.__members__.get(reply.error, ErrorCode.UNKNOWN_SERVER_ERROR)
    if response.status == _BUSY:
        return UnavailableError(reply.detail, code, hint=reply.hint or "retry later")
    if response.status == 404:
        return NotFoundError(reply.detail, hint=reply.hint)
    return RejectedError(reply.detail, code, hint=reply.hint)
