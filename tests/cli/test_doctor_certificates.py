"""The doctor finds certificates that expire, cannot be used, or have a key that others can read."""

from datetime import timedelta
from pathlib import Path

import pytest
from tls_world import TlsWorld

from moldau.cli.check_result import CheckStatus
from moldau.cli.doctor_certificates import check_certificates
from moldau.server.config.load import load_config

pytestmark = pytest.mark.inprocess


@pytest.fixture
def world(tmp_path):
    return TlsWorld(tmp_path)


def check(world):
    flags = {
        "kafka.security": "tls",
        "security.cert_file": str(world.cert_file),
        "security.key_file": str(world.key_file),
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
