"""`moldau certs dev` makes what TLS needs, and never overwrites anything."""

import ssl
import stat

import pytest
from cryptography import x509

from moldau.cli.errors import ExitCode
from moldau.net.tls.contexts import TlsContexts, TlsFiles


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


def hosts_of(path):
    names = certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = [str(one) for one in names.get_values_for_type(x509.IPAddress)]
    return names.get_values_for_type(x509.DNSName) + addresses


def test_one_command_makes_a_ca_and_certificates_that_a_listener_takes(cli, tmp_path):
    folder = tmp_path / "certs"
    outcome = cli("certs", "dev", folder, "--host", "b1.example", "--client", "alice")
    assert outcome.code == 0, outcome.err
    assert f"--set security.cert_file={folder}/broker.pem" in outcome.out
    assert f"ssl.ca.location={folder}/ca.pem" in outcome.out
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.{end}" for name in ("ca", "broker", "alice") for end in ("pem", "key")
    }
    assert {"localhost", "127.0.0.1", "::1", "b1.example"} <= set(hosts_of(folder / "broker.pem"))
    contexts = TlsContexts(
        TlsFiles(
            cert_file=str(folder / "broker.pem"),
            key_file=str(folder / "broker.key"),
            ca_file=str(folder / "ca.pem"),
            requires_client=True,
        )
    )
    assert contexts.server.verify_mode is ssl.CERT_REQUIRED
    ca = certificate(folder / "ca.pem")
    for name in ("broker", "alice"):
        certificate(folder / f"{name}.pem").verify_directly_issued_by(ca)


def test_keys_are_for_their_owner_only(cli, tmp_path):
    folder = tmp_path / "certs"
    cli("certs", "dev", folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for key in folder.glob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_files_that_exist_are_kept_and_the_same_ca_signs_new_ones(cli, tmp_path):
    cli("certs", "dev", tmp_path, "--client", "alice")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    outcome = cli("certs", "dev", tmp_path, "--client", "alice", "--client", "bob")
    assert outcome.code == 0
    assert "kept" in outcome.err
    assert {path: path.read_bytes() for path in before} == before
    certificate(tmp_path / "bob.pem").verify_directly_issued_by(certificate(tmp_path / "ca.pem"))
    outcome = cli("certs", "dev", tmp_path, "--client", "alice")
    assert outcome.code == 0
    assert outcome.out == ""


def test_half_a_pair_is_an_error_and_nothing_is_overwritten(cli, tmp_path):
    (tmp_path / "broker.key").write_text("mine")
    outcome = cli("certs", "dev", tmp_path)
    assert outcome.code == ExitCode.FAILED
    assert "only one of broker.pem and broker.key" in outcome.err
    assert (tmp_path / "broker.key").read_text() == "mine"


def test_a_ca_that_cannot_be_used_is_an_error(cli, tmp_path):
    (tmp_path / "ca.pem").write_text("x")
    (tmp_path / "ca.key").write_text("x")
    outcome = cli("certs", "dev", tmp_path)
    assert outcome.code == ExitCode.FAILED
    assert "cannot read ca.pem" in outcome.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--client", "../evil"),
        ("--client", "ca"),
        ("--client", "broker"),
        ("--client", "a", "--client", "a"),
        ("--host", "a b"),
        ("--days", "0"),
    ],
)
def test_names_that_make_no_sense_are_refused(cli, tmp_path, arguments):
    folder = tmp_path / "certs"
    assert cli("certs", "dev", folder, *arguments).code == ExitCode.USAGE
    assert not folder.exists()
