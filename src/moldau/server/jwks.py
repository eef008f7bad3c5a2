"""The public keys of an identity provider, fetched by https and kept.

The address is a setting of the operator, and nothing that a client sends changes it. Only https, no
redirects, no link-local addresses, no proxies of the environment, a bounded answer in bounded time.
While the provider is down, the keys that were fetched before stay in use.
"""

import asyncio
import contextlib
import ipaddress
import json
import logging
import socket
import ssl
import time
from http.client import HTTPS_PORT, HTTPException, HTTPSConnection
from typing import Final

from moldau.api.password_check import UnavailableError
from moldau.model import log_events as events
from moldau.model.clock import Clock
from moldau.model.errors import MoldauError
from moldau.security.jwt import PublicKey, parse_keys
from moldau.server.config.identity_rules import parse_https_url

log = logging.getLogger(__name__)

FETCH_SECONDS_MAX: Final = 10.0
_SOCKET_SECONDS_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 256 * 1024
REFRESH_SECONDS: Final = 600.0
"""Keys that are older are fetched again, while the old ones are used."""
STALE_SECONDS: Final = 2 * REFRESH_SECONDS
"""Keys that are older are used only after an attempt to fetch them: after a quiet time the issuer
may long have withdrawn them."""
RETRY_SECONDS: Final = 30.0
"""Between two fetches, however many tokens have unknown keys: anyone can make up such tokens."""
_CHUNK_BYTES: Final = 16 * 1024
DOWN: Final = "Authentication failed: the identity provider of the broker is not reachable"


class JwksError(MoldauError):
    """The keys could not be fetched; the text is for the operator."""


class JwksFetch:
    """One request, made in a thread; `abort` ends it from another one."""

    def __init__(self, url: str, ca_file: str | None) -> None:
        self._url = parse_https_url(url)
        self._ca_file = ca_file
        self._connection: HTTPSConnection | None = None
        self._aborted = False

    def run(self) -> tuple[PublicKey, ...]:
        """Raises JwksError."""
        try:
            body = self._get()
        except JwksError:
            raise
        except TimeoutError:
            raise JwksError("no answer in time") from None
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or "TLS failed"
            raise JwksError(str(reason).lower().replace("_", " ")) from None
        except OSError as error:
            raise JwksError((error.strerror or str(error)).lower()) from None
        except HTTPException as error:
            raise JwksError(f"not an HTTP answer ({type(error).__name__})") from None
        return read_keys(body)

    def abort(self) -> None:
        self._aborted = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _get(self) -> bytes:
        deadline = time.monotonic() + FETCH_SECONDS_MAX
        url = self._url
        _check_address(url.hostname or "", url.port)
        context = ssl.create_default_context(cafile=self._ca_file)
        # Python 3.13 refuses private authorities without key identifiers, as many have been made.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.hostname_checks_common_name = False
        connection = HTTPSConnection(
            url.hostname or "", url.port, timeout=_SOCKET_SECONDS_MAX, context=context
        )
        self._connection = connection
        try:
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            connection.request("GET", path, headers={"Accept": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                # Redirects too: they could lead to another host or scheme.
                raise JwksError(f"status {answer.status}, expected 200")
            body = bytearray()
            while chunk := answer.read1(_CHUNK_BYTES):
                body += chunk
                if len(body) > ANSWER_BYTES_MAX:
                    raise JwksError(f"more than {ANSWER_BYTES_MAX} bytes")
                if self._aborted or time.monotonic() > deadline:
                    raise TimeoutError
            return bytes(body)
        finally:
            connection.close()


def _check_address(host: str, port: int | None) -> None:
    """Raises JwksError, before anything is sent there. Clouds serve credentials of the machine at
    such addresses, to every process on it; no identity provider has one."""
    found = socket.getaddrinfo(host, port or HTTPS_PORT, type=socket.SOCK_STREAM)
    for address in {ipaddress.ip_address(each[4][0]) for each in found}:
        mapped = getattr(address, "ipv4_mapped", None)
        if (mapped or address).is_link_local:
            raise JwksError(f"{host} is at the link-local address {address}, which is not used")


def read_keys(body: bytes) -> tuple[PublicKey, ...]:
    """The keys of an answer. Raises JwksError."""
    try:
        keys = parse_keys(json.loads(body))
    except (ValueError, RecursionError) as error:
        is_json = not isinstance(error, RecursionError | json.JSONDecodeError | UnicodeDecodeError)
        raise JwksError(str(error) if is_json else "the answer is not JSON") from None
    if not keys:
        raise JwksError("the answer has no key that can be used")
    return keys


class Jwks:
    """The keys, fetched when the first token comes."""

    def __init__(self, url: str, ca_file: str | None, clock: Clock) -> None:
        self._url = url
        self._ca_file = ca_file
        self._clock = clock
        self._keys: tuple[PublicKey, ...] | None = None
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._failure = ""
        self._running: asyncio.Task[None] | None = None

    async def keys(self, *, lacks_one: bool = False) -> tuple[PublicKey, ...]:
        """The keys, fetched if there are none, they are old, or the last ones lack one that a token
        names. Raises UnavailableError."""
        now = self._clock.monotonic()
        age = now - self._fetched_at
        # While fetches fail, the old keys stay in use, and nobody waits for the next attempt.
        is_stale = age > STALE_SECONDS and not self._failure
        must_wait = self._keys is None or lacks_one or is_stale
        is_old = age > REFRESH_SECONDS
        may_fetch = now - self._tried_at >= RETRY_SECONDS
        if self._running is None and may_fetch and (is_old or must_wait):
            self._tried_at = now
            self._running = asyncio.create_task(self._fetch())
        if self._running is not None and must_wait:
            # Shielded: others wait for the same answer.
            await asyncio.shield(self._running)
        if self._keys is None:
            raise UnavailableError(DOWN, reason=f"cannot fetch the keys of tokens: {self._failure}")
        return self._keys

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _fetch(self) -> None:
        fetch = JwksFetch(self._url, self._ca_file)
        try:
            async with asyncio.timeout(FETCH_SECONDS_MAX):
                self._keys = await asyncio.to_thread(fetch.run)
        except (JwksError, TimeoutError) as error:
            self._log_failure(str(error) or "no answer in time")
        else:
            self._fetched_at = self._clock.monotonic()
            if self._failure:
                log.info("keys of tokens fetched again from %s", self._url)
            self._failure = ""
        finally:
            fetch.abort()
            self._running = None

    def _log_failure(self, failure: str) -> None:
        """Once per reason, until a fetch succeeds."""
        if failure != self._failure:
            kept = "" if self._keys is None else "; the keys fetched before stay in use"
            log.error(
                "cannot fetch the keys of tokens from %s: %s%s",
                self._url,
                failure,
                kept,
                extra=events.TOKEN_KEYS_UNAVAILABLE(),
            )
        self._failure = failure
