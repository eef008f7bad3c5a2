"""`moldau login` at a broker: can Kafka commands use the token?"""

import pytest

from moldau.testing.broker import Broker

pytestmark = pytest.mark.system


def test_a_login_warns_of_a_kafka_listener_that_takes_no_tokens(new_user, secured, cli):
    run = new_user("tia")
    done = run("login", "--http", secured.http_address)
    assert done.code == 0, done.err
    assert "logged in as tia" in done.err
    assert "warning: Kafka commands cannot use this profile" in done.err
    assert "add OAUTHBEARER to its kafka.sasl_mechanisms" in done.err
    assert "does not accept tokens" in cli("topic", "list").err


def test_a_login_works_for_kafka_without_an_identity_provider(cli, tmp_path):
    mechanisms = {"KAFKA__SASL_MECHANISMS": "SCRAM-SHA-512,OAUTHBEARER"}
    with Broker(data_dir=tmp_path / "data", settings=mechanisms) as broker:
        local = ("-b", broker.bootstrap, "--data-dir", broker.data_dir)
        password_file = tmp_path / "password"
        password_file.write_text(cli("user", "add", "uli", "--generate", *local).out)
        user = ("--user", "uli", "--password-file", password_file)
        done = cli("login", "--http", broker.http_address, "-b", broker.bootstrap, *user)
        assert done.code == 0, done.err
        assert "warning" not in done.err
        assert cli("topic", "list").code == 0


def test_a_profile_with_a_password_logs_in(admin, cli, secured, tmp_path):
    password_file = tmp_path / "password"
    password_file.write_text(admin("user", "add", "pia", "--generate").out)
    user = ("--user", "pia", "--password-file", password_file)
    address = ("-b", secured.bootstrap)
    assert cli("profile", "add", "kept", *address, *user).code == 0
    assert cli("topic", "list", *address).code != 0, "without a profile nobody is let in"
    assert cli("topic", "list", "--profile", "kept").code == 0
    password_file.write_text("another\n")
    refused = cli("topic", "list", "--profile", "kept")
    assert refused.code != 0
    assert "another" not in refused.err
