"""The certificates of listeners: shared, own ones first, and warnings before they expire."""

import asyncio
import json
from datetime import timedelta

import pytest
from tls_world import TlsWorld

from moldau.model.errors import ConfigError
from moldau.net.tls.handshake_turns import HandshakeTurns
from moldau.server.certificates import Certificates
from moldau.server.clock import SystemClock
from moldau.server.config.listeners import listeners_of
from moldau.server.config.load import load_config

pytestmark = pytest.mark.inprocess

DAY_MS = 86_400_000


@pytest.fixture
def world(tmp_path):
    return TlsWorld(tmp_path)


def config_of(world, *entries):
    flags = {
        "security.cert_file": str(world.cert_file),
        "security.key_file": str(world.key_file),
        "security.client_ca_file": str(world.ca_file),
    }
    listeners = [
        {"name": name, "protocol": "kafka", "address": f"127.0.0.1:{number}", **more}
        for number, (name, more) in enumerate(entries, 9000)
    ]
    return load_config(flags, {"MOLDAU_LISTENERS": json.dumps(listeners)}).config


def test_listeners_with_the_same_files_share_them_and_others_have_their_own(world):
    cert, key = world.client_files("other")
    config = config_of(
        world,
        ("plain", {}),
        ("one", {"security": "tls"}),
        ("two", {"security": "tls"}),
        ("strict", {"security": "mtls"}),
        ("own", {"security": "tls", "cert_file": cert, "key_file": key}),
    )
    certificates = Certificates(config)
    certificates.load()
    found = {one.name: certificates.of(one) for one in listeners_of(config)}
    assert found["plain"] is None
    assert found["http"] is None
    assert found["one"] is found["two"]
    assert found["strict"] is not None
    assert found["strict"].files.requires_client
    assert found["own"] is not None
    assert found["own"].files.cert_file == cert
    assert set(certificates.expiries()) == {str(world.cert_file), cert}


def test_a_listener_without_a_host_of_the_certificate_is_announced(world):
    world.renew(expires_in=timedelta(days=100))
    config = config_of(
        world,
        ("here", {"security": "tls"}),
        ("there", {"security": "tls", "advertised": "queue.example:9093"}),
        ("plain", {"advertised": "plain.example:9094"}),
    )
    certificates = Certificates(config)
    certificates.load()
    (expires_at,) = certificates.expiries().values()
    (found,) = certificates.warnings(int(expires_at * 1000) - 31 * DAY_MS)
    assert f"{world.cert_file} is not for queue.example, which listeners.there adv" in found
    assert "set advertised of listeners.there to a host in it: localhost, 127.0.0.1" in found


async def test_handshakes_of_all_listeners_share_their_time(world):
    config = config_of(world, ("one", {"security": "tls"}), ("strict", {"security": "mtls"}))
    turns = HandshakeTurns(asyncio.get_running_loop(), SystemClock())
    certificates = Certificates(config, turns)
    found = [certificates.of(one) for one in listeners_of(config) if one.uses_tls]
    assert [one and one.turns for one in found] == [turns, turns]


def test_changed_files_are_loaded(world):
    certificates = Certificates(config_of(world, ("one", {"security": "tls"})))
    certificates.load()
    (before,) = certificates.expiries().values()
    world.renew(expires_in=timedelta(days=90))
    certificates.reload()
    (after,) = certificates.expiries().values()
    assert after > before


def test_files_that_cannot_be_used_are_found_at_the_start(world):
    world.install("garbage", "garbage")
    with pytest.raises(ConfigError, match="no certificate in PEM form"):
        Certificates(config_of(world, ("one", {"security": "tls"}))).load()


def test_an_expiry_is_announced(world):
    world.renew(expires_in=timedelta(days=100))
    certificates = Certificates(config_of(world, ("one", {"security": "tls"})))
    certificates.load()
    (expires_at,) = certificates.expiries().values()
    expires_ms = int(expires_at * 1000)
    assert certificates.warnings(expires_ms - 31 * DAY_MS) == []
    (soon,) = certificates.warnings(expires_ms - 10 * DAY_MS)
    assert "expires in 10 days" in soon
    (late,) = certificates.warnings(expires_ms + 1000)
    assert "expired on " in late


def test_a_key_that_others_can_read_is_announced_one_time(world):
    world.renew(expires_in=timedelta(days=100))
    world.key_file.chmod(0o644)
    config = config_of(world, ("one", {"security": "tls"}), ("two", {"security": "mtls"}))
    certificates = Certificates(config)
    certificates.load()
    (warning,) = certificates.warnings(SystemClock().wall_ms())
    assert f"other users can read the private key {world.key_file}" in warning


def test_a_certificate_that_is_not_valid_yet_is_announced(world):
    world.renew(begins_in=timedelta(days=3), expires_in=timedelta(days=100))
    certificates = Certificates(config_of(world, ("one", {"security": "tls"})))
    certificates.load()
    (expires_at,) = certificates.expiries().values()
    begins_ms = int(expires_at * 1000) - 97 * DAY_MS
    (early,) = certificates.warnings(begins_ms - 1000)
    assert f"{world.cert_file} is not valid before 20" in early
    assert certificates.warnings(begins_ms + 1000) == []
