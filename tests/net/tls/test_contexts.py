"""TLS contexts: files that are missing, wrong, exposed or replaced."""

import asyncio
import os
import ssl
import time
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)
from msgspec.structs import replace
from secure_front import identity
from tls_world import TlsWorld

from moldau.model.errors import ConfigError
from moldau.model.secret import Secret
from moldau.net.tls.channel import TlsChannel, describe
from moldau.net.tls.contexts import TlsContexts, is_key_exposed

pytestmark = pytest.mark.inprocess


@pytest.fixture
def world(tmp_path):
    return TlsWorld(tmp_path)


def test_only_new_versions_and_ciphers_with_forward_secrecy_are_allowed(world):
    context = world.contexts().server
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    names = [cipher["name"] for cipher in context.get_ciphers()]
    assert all(name.startswith(("TLS_", "ECDHE-")) for name in names)
    assert not any("CBC" in name or name.endswith("-SHA") for name in names)
    assert context.verify_mode is ssl.CERT_NONE
    assert world.contexts(mtls=True).server.verify_mode is ssl.CERT_REQUIRED


def test_problems_of_files_are_named(world, tmp_path):
    files = world.files()
    with pytest.raises(ConfigError, match=r"cannot read .*nope\.pem: No such file"):
        TlsContexts(replace(files, cert_file=str(tmp_path / "nope.pem")))
    with pytest.raises(ConfigError, match=r"cannot read .*nope\.key: No such file"):
        TlsContexts(replace(files, key_file=str(tmp_path / "nope.key")))
    garbage = tmp_path / "garbage"
    garbage.write_text("not PEM")
    with pytest.raises(ConfigError, match="contains no certificate in PEM form"):
        TlsContexts(replace(files, cert_file=str(garbage)))
    with pytest.raises(ConfigError, match="contains no certificate in PEM form"):
        TlsContexts(replace(files, ca_file=str(garbage)))
    with pytest.raises(ConfigError, match="cannot use"):
        TlsContexts(replace(files, key_file=str(garbage)))
    _, other_key = world.client_files()
    with pytest.raises(ConfigError, match="is not the key of the certificate"):
        TlsContexts(replace(files, key_file=other_key))
    with pytest.raises(ConfigError, match="no client CA"):
        TlsContexts(replace(files, ca_file=None, requires_client=True))


def test_a_key_with_a_password_needs_it_and_never_shows_it(world):
    made = identity("broker", signer=world.authority)
    locked = made.private_key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"hunter2")
    )
    world.install(made.pem, locked.decode())
    for password in (None, Secret("wrong")):
        with pytest.raises(ConfigError) as caught:
            TlsContexts(replace(world.files(), key_password=password))
        assert "key_password" in caught.value.hint
    contexts = TlsContexts(replace(world.files(), key_password=Secret("hunter2")))
    assert "hunter2" not in repr(contexts.files)
    key, certificate, authority = contexts.pem()
    assert b"ENCRYPTED" not in key
    assert certificate.decode() == made.pem
    assert authority is not None


def test_replaced_files_are_loaded_and_others_are_not(world):
    contexts = world.contexts()
    first = contexts.server
    assert not contexts.reload()
    world.renew()
    assert contexts.reload()
    assert contexts.server is not first
    assert contexts.loaded_total == 2
    assert not contexts.reload()


def test_a_secret_that_kubernetes_replaces_is_loaded_from_the_same_paths(world, tmp_path):
    """The files are links by way of a link to a folder, which is replaced as a whole."""
    volume = tmp_path / "volume"
    volume.mkdir()

    def replace_secret(version: str) -> None:
        folder = volume / f"..{version}"
        folder.mkdir()
        for name, source in (("tls.crt", world.cert_file), ("tls.key", world.key_file)):
            (folder / name).write_bytes(source.read_bytes())
            # The times of a projected volume say nothing.
            os.utime(folder / name, ns=(0, 0))
        (volume / "..data_tmp").symlink_to(folder.name)
        (volume / "..data_tmp").rename(volume / "..data")

    replace_secret("1")
    for name in ("tls.crt", "tls.key"):
        (volume / name).symlink_to(f"..data/{name}")
    files = {"cert_file": str(volume / "tls.crt"), "key_file": str(volume / "tls.key")}
    contexts = TlsContexts(replace(world.files(), **files))
    world.renew()
    assert not contexts.reload()
    replace_secret("2")
    assert contexts.reload()
    assert contexts.pem()[1] == world.cert_file.read_bytes()


def test_bad_new_files_leave_the_old_ones_in_use_and_are_logged_one_time(world, caplog):
    contexts = world.contexts()
    first = contexts.server
    world.install("garbage", "garbage")
    for _ in range(3):
        assert not contexts.reload()
    assert contexts.server is first
    assert caplog.text.count("new certificate not used, the old one stays") == 1
    os.unlink(world.cert_file)
    assert not contexts.reload()
    assert caplog.text.count("the old one stays") == 2
    world.renew()
    assert contexts.reload()


def test_a_certificate_and_a_key_that_do_not_fit_yet_are_not_used(world):
    """A tool that replaces one file after the other must not break anything in between."""
    contexts = world.contexts()
    made = identity("broker", signer=world.authority)
    world.cert_file.write_text(made.pem)
    assert not contexts.reload()
    world.key_file.write_text(made.key_pem)
    assert contexts.reload()


@pytest.mark.parametrize(
    ("dates", "reason"),
    [
        ({"begins_in": timedelta(hours=1)}, "is not valid before"),
        ({"expires_in": timedelta(hours=-1)}, "expired on"),
    ],
)
def test_a_new_certificate_that_clients_refuse_does_not_replace_a_good_one(
    world, caplog, dates, reason
):
    contexts = world.contexts()
    first, pem = contexts.server, contexts.pem()
    world.renew(**dates)
    for _ in range(3):
        assert not contexts.reload()
    assert contexts.server is first
    assert contexts.pem() == pem
    assert caplog.text.count("new certificate not used, the old one stays") == 1
    assert reason in caplog.text


def test_a_new_certificate_is_loaded_as_soon_as_it_is_valid(world):
    now = time.time()
    contexts = TlsContexts(world.files(), now=lambda: now)
    world.renew(begins_in=timedelta(hours=1))
    assert not contexts.reload()
    now += 3601
    assert contexts.reload()


def test_a_new_certificate_replaces_one_that_has_expired_whatever_its_dates(world, caplog):
    world.renew(expires_in=timedelta(minutes=-1))
    contexts = world.contexts()
    world.renew(begins_in=timedelta(hours=1))
    assert contexts.reload()
    assert "clients refuse the certificate" in caplog.text
    assert "is not valid before" in caplog.text


@pytest.mark.parametrize("hosts", [("localhost",), ("other.example",)])
def test_the_log_does_not_blame_the_name_for_the_dates(world, hosts):
    """OpenSSL's clients send one alert for both."""
    begins_in = timedelta(hours=1 if hosts == ("localhost",) else -1)
    world.renew(hosts=hosts, begins_in=begins_in)
    client = TlsChannel(world.client(), server_side=False, host="localhost")
    server = TlsChannel(world.contexts().server)
    client.handshake()
    server.feed(client.output())
    server.handshake()
    client.feed(server.output())
    with pytest.raises(ssl.SSLCertVerificationError):
        client.handshake()
    server.feed(client.output())
    with pytest.raises(ssl.SSLError) as caught:
        server.handshake()
    assert "check its names and dates" in describe(caught.value)


@pytest.mark.parametrize(
    ("mode", "is_own", "is_own_group", "exposed"),
    [
        (0o600, True, True, False),
        (0o640, True, True, True),
        (0o440, False, True, False),
        (0o640, False, True, False),
        (0o640, False, False, True),
        (0o644, False, True, True),
    ],
    ids=["own", "of its group", "fsGroup", "administrator", "of another group", "of everyone"],
)
def test_a_key_is_not_exposed_to_the_group_that_the_broker_gets_it_by(
    mode: int,
    is_own: bool,
    is_own_group: bool,
    exposed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = tmp_path / "key"
    key.touch()
    key.chmod(mode)
    state = key.stat()
    monkeypatch.setattr(os, "geteuid", lambda: state.st_uid + (not is_own))
    monkeypatch.setattr(os, "getegid", lambda: state.st_gid + 1)
    monkeypatch.setattr(os, "getgroups", lambda: [state.st_gid] if is_own_group else [])
    assert is_key_exposed(str(key)) is exposed


def test_a_key_that_others_can_read_is_logged(world, caplog):
    assert not is_key_exposed(str(world.key_file))
    world.key_file.chmod(0o644)
    assert is_key_exposed(str(world.key_file))
    contexts = world.contexts()
    assert f"private key {world.key_file}; protect it" in contexts.key_warnings[0]
    world.renew()
    world.key_file.chmod(0o644)
    assert contexts.reload()
    assert "other users can read the private key" in caplog.text


def test_the_expiry_is_known(world):
    made = world.renew()
    assert world.contexts().expires_at == made.certificate.not_valid_after_utc.timestamp()


async def test_the_name_that_a_client_asks_for_selects_the_certificate(world, tmp_path):
    pairs = []
    for name, hosts in {"public": ("queue.example",), "wild": ("*.inside.example",)}.items():
        made = identity(name, hosts=hosts, signer=world.authority)
        cert, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        cert.write_text(made.pem)
        key.write_text(made.key_pem)
        pairs.append((str(cert), str(key)))
    contexts = TlsContexts(replace(world.files(), others=tuple(pairs)))
    assert {one.file for one in contexts.certificates} == {
        str(world.cert_file),
        *(cert for cert, _ in pairs),
    }
    server = await asyncio.start_server(_echo, "127.0.0.1", 0, ssl=contexts.server)
    port = server.sockets[0].getsockname()[1]
    # The client itself checks that the certificate has the name.
    for host in ("localhost", "queue.example", "QUEUE.example", "b1.inside.example"):
        _, answer = await handshake(port, world.client(), host)
        assert answer == b"x"
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        await handshake(port, world.client(), "a.b.inside.example")
    server.close()
    await server.wait_closed()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(1))
    writer.close()


async def handshake(port, context, host="localhost"):
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=host
    )
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.write(b"x")
    got = await reader.read(1)
    writer.close()
    return found, got
