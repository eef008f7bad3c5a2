"""Keys are fetched by https only, bounded in size and time, seldom, and kept while it is down."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from https_keys import IdentityProvider, unused_https_url

from moldau.api.password_check import UnavailableError
from moldau.security.jwt import PublicKey
from moldau.server import jwks
from moldau.server.clock import SystemClock
from moldau.server.config.identity_rules import parse_https_url
from moldau.server.jwks import RETRY_SECONDS, STALE_SECONDS, Jwks, JwksError, JwksFetch, read_keys

pytestmark = pytest.mark.inprocess


class MovableClock(SystemClock):
    """Time that a test moves on."""

    def __init__(self) -> None:
        self.seconds = 0.0
        # The product takes the function itself.
        self.monotonic = lambda: self.seconds


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[IdentityProvider]:
    with IdentityProvider(tmp_path) as started:
        yield started


def ids(found: tuple[PublicKey, ...]) -> list[str | None]:
    return [key.id for key in found]


def test_keys_are_fetched_from_a_provider_that_the_ca_vouches_for(provider: IdentityProvider):
    fetched = JwksFetch(provider.url, str(provider.ca_file)).run()
    assert ids(fetched) == ["key-1"]


def test_a_provider_with_an_unknown_certificate_is_not_asked(provider: IdentityProvider):
    with pytest.raises(JwksError, match=r"self.signed|unable to get"):
        JwksFetch(provider.url, None).run()
    other_name = provider.url.replace("127.0.0.1", "localhost")
    with pytest.raises(JwksError, match=r"[Hh]ostname|mismatch"):
        JwksFetch(other_name, str(provider.ca_file)).run()
    assert provider.requests == 0


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("down", "status 503"),
        ("huge", "more than"),
        ("text", "not JSON"),
        ("redirect", "status 302"),
    ],
)
def test_answers_that_are_no_keys_are_refused(provider: IdentityProvider, mode: str, reason: str):
    provider.mode = mode
    provider.redirect_to = provider.url.replace("/keys", "/elsewhere")
    with pytest.raises(JwksError, match=reason):
        JwksFetch(provider.url, str(provider.ca_file)).run()
    # Nothing followed the redirect, even to the same host.
    assert provider.requests == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.example/keys",
        "file:///etc/passwd",
        "ftp://issuer.example/keys",
        "https:///keys",
        "https://user:password@issuer.example/keys",
        "https://issuer.example/keys#part",
        "https://issuer.example:port/keys",
        "https://issuer.example/a b",
        "https://issuer.example/a\r\nHost: other",
        "//issuer.example/keys",
        "data:,",
        "",
    ],
)
def test_only_addresses_of_https_are_accepted(url: str):
    with pytest.raises(ValueError):
        parse_https_url(url)
    with pytest.raises(ValueError):
        JwksFetch(url, None)


@pytest.mark.parametrize(
    "body", [b"[]", b"{}", b'{"keys": 1}', b'{"keys": [1]}', b"[" * 100_000, b"\xff", b""]
)
def test_an_answer_without_keys_is_no_key_set(body: bytes):
    with pytest.raises(JwksError):
        read_keys(body)


async def test_keys_are_fetched_once_and_again_for_an_unknown_key_but_seldom(
    provider: IdentityProvider,
):
    clock = MovableClock()
    keys = Jwks(provider.url, str(provider.ca_file), clock)
    both = await asyncio.gather(keys.keys(), keys.keys(lacks_one=True))
    assert [ids(found) for found in both] == [["key-1"], ["key-1"]]
    assert provider.requests == 1
    provider.add_key("key-2", curve=True)
    for _ in range(20):
        assert ids(await keys.keys(lacks_one=True)) == ["key-1"]
    assert provider.requests == 1
    clock.seconds += RETRY_SECONDS
    assert ids(await keys.keys()) == ["key-1"]
    assert ids(await keys.keys(lacks_one=True)) == ["key-1", "key-2"]
    for _ in range(20):
        await keys.keys(lacks_one=True)
    assert provider.requests == 2
    await keys.stop()


async def test_a_key_that_was_withdrawn_in_a_quiet_time_is_not_used_again(
    provider: IdentityProvider,
):
    clock = MovableClock()
    keys = Jwks(provider.url, str(provider.ca_file), clock)
    assert ids(await keys.keys()) == ["key-1"]
    provider.remove_key("key-1")
    provider.add_key("key-2")
    clock.seconds += STALE_SECONDS + 1
    assert ids(await keys.keys()) == ["key-2"]
    await keys.stop()


async def test_keys_stay_in_use_while_the_provider_is_down(
    provider: IdentityProvider, caplog: pytest.LogCaptureFixture
):
    clock = MovableClock()
    keys = Jwks(provider.url, str(provider.ca_file), clock)
    await keys.keys()
    provider.mode = "down"
    for _ in range(5):
        clock.seconds += 10_000
        assert ids(await keys.keys()) == ["key-1"]
        assert ids(await keys.keys(lacks_one=True)) == ["key-1"]
    lines = [line for line in caplog.messages if "status 503" in line]
    assert len(lines) == 1
    assert "stay in use" in lines[0]
    provider.mode = "keys"
    provider.remove_key("key-1")
    provider.add_key("key-3")
    clock.seconds += 10_000
    assert ids(await keys.keys(lacks_one=True)) == ["key-3"]
    await keys.stop()


async def test_without_any_keys_nobody_gets_in_and_the_reason_is_clear(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    keys = Jwks(unused_https_url(), None, MovableClock())
    for _ in range(3):
        with pytest.raises(UnavailableError) as caught:
            await keys.keys()
        assert "not reachable" in str(caught.value)
        assert "refused" in caught.value.reason
    assert len(caplog.messages) == 1


async def test_a_provider_that_hangs_is_given_up(
    provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jwks, "FETCH_SECONDS_MAX", 0.2)
    provider.mode = "hangs"
    keys = Jwks(provider.url, str(provider.ca_file), MovableClock())
    with pytest.raises(UnavailableError):
        await keys.keys()
    await keys.stop()
