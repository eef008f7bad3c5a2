"""The doctor finds certificates that expire, cannot be used, or have a key that others can read."""

from datetime import timedelta
from pathlib import Path

import pytest
from secure_front import identity
from tls_world import TlsWorld

from moldau.cli.check_result import CheckStatus
from moldau.cli.doctor_certificates import check_certificates
from moldau.server.config.load import load_config

pytestmark = pytest.mark.inprocess


@pytest.fixture
def world(tmp_path):
    return TlsWorld(tmp_path)


def check(world, **more):
    flags = {
        "kafka.security": "tls",
        "security.cert_file": str(world.cert_file),
        "security.key_file": str(world.key_file),
        **more,
    }
    return list(check_certificates(load_config(flags, {}).config))


def test_a_broker_without_tls_has_no_certificate_to_check():
    assert list(check_certificates(load_config({}, {}).config)) == []


@pytest.mark.parametrize(
    ("days", "verdict"),
    [(100, CheckStatus.OK), (10, CheckStatus.WARNING), (-0.5, CheckStatus.TROUBLE)],
)
def test_the_expiry_is_judged(world, days, verdict):
    world.renew(expires_in=timedelta(days=days))
    (result,) = check(world)
    assert result.verdict is verdict
    assert ("expired on" in result.detail) == (days < 0)


def test_a_certificate_that_is_not_valid_yet_is_trouble(world):
    world.renew(begins_in=timedelta(hours=1), expires_in=timedelta(days=100))
    (result,) = check(world)
    assert result.verdict is CheckStatus.TROUBLE
    assert result.detail.startswith("is not valid before 20")
    assert "clients refuse it" in result.detail


@pytest.mark.parametrize(
    ("host", "hosts", "is_fine"),
    [
        ("b1.example", ("b1.example",), True),
        ("B1.example", ("b1.EXAMPLE",), True),
        ("b1.example", ("*.example",), True),
        ("a.b1.example", ("*.example",), False),
        ("b1.example", ("b2.example", "127.0.0.1"), False),
        ("127.0.0.7", ("127.0.0.7",), True),
        ("127.0.0.7", ("localhost", "127.0.0.1"), False),
        ("b1.example", (), False),
    ],
)
def test_a_certificate_must_have_the_advertised_host(world, host, hosts, is_fine):
    world.renew(hosts=hosts, expires_in=timedelta(days=100))
    first, *others = check(world, **{"kafka.advertised": f"{host}:9092"})
    assert first.verdict is CheckStatus.OK
    assert (others == []) == is_fine
    for result in others:
        assert result.verdict is CheckStatus.TROUBLE
        assert f"is not for {host}, which kafka.addr advertises" in result.detail
        assert f"--host {host}" in result.hint
        assert "set kafka.advertised to a host in it: " + ", ".join(hosts) in result.hint


def test_one_of_several_certificates_must_have_the_advertised_host(world, tmp_path):
    made = identity("other", hosts=("b1.example", "127.0.0.7"), signer=world.authority)
    (tmp_path / "o.pem").write_text(made.pem)
    (tmp_path / "o.key").write_text(made.key_pem)
    (tmp_path / "o.key").chmod(0o600)
    files = {
        "security.cert_file": f"{world.cert_file},{tmp_path / 'o.pem'}",
        "security.key_file": f"{world.key_file},{tmp_path / 'o.key'}",
    }

    def troubles(**more):
        found = check(world, **more, **files)
        return [each.detail for each in found if each.verdict is CheckStatus.TROUBLE]

    assert troubles(**{"kafka.advertised": "b1.example:9092"}) == []
    # A client names no address in its handshake, and gRPC has one certificate.
    assert len(troubles(**{"kafka.advertised": "127.0.0.7:9092"})) == 1
    assert len(troubles(**{"grpc.security": "tls", "grpc.advertised": "b1.example:8000"})) == 1


def test_a_key_of_another_certificate_is_trouble(world):
    _, key = world.client_files()
    world.key_file.write_text(Path(key).read_text())
    (result,) = check(world)
    assert result.verdict is CheckStatus.TROUBLE
    assert "is not the key of the certificate" in result.detail


def test_a_key_that_others_can_read_is_a_warning(world):
    world.renew(expires_in=timedelta(days=100))
    world.key_file.chmod(0o644)
    first, second = check(world)
    assert first.verdict is CheckStatus.WARNING
    assert "chmod 600" in first.hint
    assert second.verdict is CheckStatus.OK
