"""Known class: configuration that leads to code: what is read is data, whatever it looks like."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from code_watch import code_watch

from moldau.cli.connection.profiles import load_profiles
from moldau.cli.errors import CommandError
from moldau.client.errors import ClientError
from moldau.client.librdkafka_security import librdkafka_names
from moldau.client.security import parse_security
from moldau.metadata.topic_configs import check_topic_configs
from moldau.model.errors import MoldauError
from moldau.security.certificate_names import CertificateNames
from moldau.security.sasl import AuthenticationError
from moldau.server.assignors import load_assignors
from moldau.server.config.files import read_config_file
from moldau.server.config.load import load_config
from moldau.spark.options import Options

YAML = {
    "a call": "!!python/object/apply:os.system ['touch {}']",
    "a new object": "!!python/object/new:subprocess.Popen [['touch', '{}']]",
    "a name": "!!python/name:os.system",
    "a module": "!!python/module:this",
    "an object": "!!python/object:os.system {{}}",
    "a tag of others": "!ruby/object:Gem::Installer {{}}",
    "a Java class": "!!javax.script.ScriptEngineManager [!!java.net.URL ['http://127.0.0.1/']]",
    "a template": "${{jndi:ldap://127.0.0.1/a}} $(touch {}) `touch {}` {{{{7*7}}}} %(x)s",
    "Python": "__import__('os').system('touch {}')",
}
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "broker.yaml": ("node: {}", lambda path: read_config_file(str(path))),
    "broker.yml": ("security:\n  super_users: {}", lambda path: load_config({}, {}, str(path))),
    "profiles.yaml": ("profiles:\n  a:\n    token: {}", lambda path: load_profiles()),
}


@pytest.mark.parametrize("text", YAML.values(), ids=YAML)
@pytest.mark.parametrize("name", READERS)
def test_a_file_holds_values_only(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    form, read = READERS[name]
    path, proof = tmp_path / name, tmp_path / "proof"
    monkeypatch.setattr("moldau.cli.connection.profiles.profiles_path", lambda: path)
    with code_watch() as seen:
        for value in ("harmless", text.format(proof, proof)):
            path.write_text(form.format(value))
            path.chmod(0o600)
            seen.clear()
            # It is refused, or kept as text.
            with suppress(MoldauError, CommandError):
                read(path)
    assert seen == []
    assert not proof.exists()


@pytest.mark.parametrize("name", ["b.yaml", "b.toml", "b.json", "b.ini", "b.env", "b.properties"])
def test_nothing_in_a_value_is_expanded(name: str, tmp_path: Path, monkeypatch):
    """Not by the shell, not from the environment, not by templates or other keys."""
    monkeypatch.setenv("PLANTED", "secret")
    text = "${PLANTED} $PLANTED $(id) {PLANTED} ${env:PLANTED} @PLANTED@"
    quoted = {"b.toml": f'k = "{text}"', "b.json": f'{{"k": "{text}"}}', "b.yaml": f'k: "{text}"'}
    path = tmp_path / name
    path.write_text(quoted.get(name, f"k={text}") + "\n")
    (entry,) = read_config_file(str(path))
    assert entry.value == text


def test_aliases_of_aliases_are_refused_before_they_fill_the_memory(tmp_path: Path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for number in range(1, 12):
        lines.append(f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]")
    path = tmp_path / "b.yaml"
    path.write_text("\n".join([*lines, "listeners: *a11"]))
    with pytest.raises(MoldauError, match="more than"):
        load_config({}, {}, str(path))


@pytest.mark.parametrize(
    "name", ["os.system", "os:system", "moldau.server.assignors", "../../plugin", "builtins.eval"]
)
def test_a_name_of_a_plugin_is_no_path_to_import(name: str):
    """Only what is installed as a plugin is loaded."""
    with suppress(MoldauError):
        load_assignors(["harmless"])
    with code_watch() as seen, pytest.raises(MoldauError, match="unknown assignor"):
        load_assignors([name])
    assert [each for each in seen if "import" in each or "exec" in each] == []


@pytest.mark.parametrize(
    "module",
    [
        "com.sun.security.auth.module.JndiLoginModule",
        "com.sun.security.auth.module.LdapLoginModule",
        "com.sun.security.auth.module.Krb5LoginModule",
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
        "os.system",
    ],
)
def test_a_login_module_is_not_loaded(module: str):
    """Kafka's clients load the class that `sasl.jaas.config` names."""
    url = "ldap://127.0.0.1/a"
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{module} required user.provider.url="{url}" username="a" '
        'password="b";',
    }
    with code_watch() as seen, pytest.raises(ClientError, match="login module"):
        parse_security(options)
    assert seen == []


@pytest.mark.parametrize(
    "name",
    [
        "plugin.library.paths",
        "sasl.kerberos.kinit.cmd",
        "ssl.engine.location",
        "ssl.providers",
        "sasl.login.callback.handler.class",
        "sasl.client.callback.handler.class",
        "ssl.engine.factory.class",
        "security.providers",
        "sasl.oauthbearer.method",
    ],
)
def test_options_of_streams_reach_librdkafka_by_their_meaning_only(name: str):
    """librdkafka loads libraries and runs commands that its own options name."""
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
        "sasl.password": "b",
        name: "/tmp/attack.so",
    }
    with pytest.raises(ClientError, match=f"unknown security option {name}"):
        parse_security(options)
    of_stream = Options({f"kafka.{each}": value for each, value in options.items()})
    given = librdkafka_names(of_stream.security())
    assert given["sasl.username"] == "a"
    assert name not in given
    assert "/tmp/attack.so" not in map(str, given.values())


@pytest.mark.parametrize(
    "rules",
    [
        "RULE:^CN=(.*)$/$1/e",
        "RULE:(?{system('id')})/$1/",
        "RULE:^CN=(.*)$/${jndi:ldap:}/",
        r"RULE:^CN=(.*)$/\g<0>{0.__class__}%(x)s/",
        "__import__('os').system('id')",
    ],
)
def test_rules_of_certificates_give_text(rules: str):
    subject = "CN={0.__class__.__mro__},OU=$(id)"
    with code_watch() as seen, suppress(ValueError, AuthenticationError):
        found = CertificateNames(rules).principal(subject)
        assert "object" not in found.name
    assert seen == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("compression.type", "os.system"),
        ("compression.type", "../../codec.so"),
        ("compression.type", "gzip; id"),
        ("cleanup.policy", "delete,__import__('os')"),
        ("interceptor.classes", "os.system"),
        ("key.deserializer", "os.system"),
    ],
)
def test_settings_of_topics_name_no_code(key: str, value: str):
    with code_watch() as seen, pytest.raises(MoldauError):
        check_topic_configs({key: value})
    assert seen == []
