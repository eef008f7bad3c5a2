"""The public keys of an identity provider, fetched by https and kept.

The address is a setting of the operator, and nothing that a client sends changes it. Only https, no
redirects, no proxies of the environment, a bounded answer in bounded time. While the provider is
down, the keys that were fetched before stay in use.
"""

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from moldau.api.password_check import UnavailableError
from moldau.model.clock import Clock
from moldau.model.errors import MoldauError

log = logging.getLogger(__name__)

FETCH_SECONDS_MAX: Final = 10.0
_SOCKET_SECONDS_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 256 * 1024
KEYS_MAX: Final = 100
REFRESH_SECONDS: Final = 600.0
"""Keys that are older are fetched again, while the old ones are used."""
RETRY_SECONDS: Final = 30.0
"""Between two fetches, however many tokens have unknown keys: a stranger can make up any number."""
_CHUNK_BYTES: Final = 16 * 1024
DOWN: Final = "Authentication failed: the identity provider of the broker is not reachable"


class JwksError(MoldauError):
    """The keys could not be fetched; the text is for the operator."""


def parse_url(url: str) -> SplitResult:
    """Raises ValueError with what is wrong."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        raise ValueError("must be an https:// address")
    if not parts.hostname or parts.username is not None or parts.fragment:
        raise ValueError("must be https://host[:port]/path, without a user or a fragment")
    if not url.isascii() or any(character <= " " for character in url):
        raise ValueError("must not have spaces or other special characters")
    # Raises ValueError for a port that is no number.
    _ = parts.port
    return parts


class JwksFetch:
    """One request, made in a thread; `abort` ends it from another one."""

    def __init__(self, url: str, ca_file: str | None) -> None:
        self._url = parse_url(url)
        self._ca_file = ca_file
        self._connection: HTTPSConnection | None = None
        self._aborted = False

    def run(self) -> Mapping[str, Any]:
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
        return parse_keys(body)

    def abort(self) -> None:
        self._aborted = True
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _get(self) -> bytes:
        deadline = time.monotonic() + FETCH_SECONDS_MAX
        url = self._url
        context = ssl.create_default_context(cafile=self._ca_file)
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


def parse_keys(body: bytes) -> Mapping[str, Any]:
    """The JSON Web Key Set. Raises JwksError."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise JwksError("the answer is not JSON") from None
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
        raise JwksError("the answer is not a JSON Web Key Set")
    if len(keys) > KEYS_MAX:
        raise JwksError(f"more than {KEYS_MAX} keys")
    return {"keys": keys}


class Jwks:
    """The keys, fetched when the first token comes."""

    def __init__(
        self,
        url: str,
        ca_file: str | None,
        clock: Clock,
        *,
        new_fetch: Callable[[str, str | None], JwksFetch] = JwksFetch,
    ) -> None:
        self._url = url
        self._ca_file = ca_file
        self._clock = clock
        self._new_fetch = new_fetch
        self._keys: Mapping[str, Any] | None = None
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._failure = ""
        self._running: asyncio.Task[None] | None = None

    async def keys(self, key_id: str | None) -> Mapping[str, Any]:
        """The key set, fetched again if it lacks this key. Raises UnavailableError."""
        now = self._clock.monotonic()
        is_old = now - self._fetched_at > REFRESH_SECONDS
        is_known = self._keys is not None and (key_id is None or self._has(key_id))
        may_fetch = now - self._tried_at >= RETRY_SECONDS
        if self._running is None and may_fetch and (is_old or not is_known):
            self._tried_at = now
            self._running = asyncio.create_task(self._fetch())
        if self._running is not None and not is_known:
            # Shielded: others wait for the same answer.
            await asyncio.shield(self._running)
        if self._keys is None:
            raise UnavailableError(DOWN, reason=f"cannot fetch the keys of tokens: {self._failure}")
        return self._keys

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def _has(self, key_id: str) -> bool:
        found = self._keys or {"keys": []}
        return any(key.get("kid") == key_id for key in found["keys"])

    async def _fetch(self) -> None:
        fetch = self._new_fetch(self._url, self._ca_file)
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
            log.error("cannot fetch the keys of tokens from %s: %s%s", self._url, failure, kept)
        self._failure = failure
