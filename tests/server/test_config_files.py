"""The same settings from every file format, and files that are none."""

import json

import pytest

from moldau.model.errors import ConfigError
from moldau.model.flush import FlushPolicy
from moldau.server.config.files import FILE_BYTES_MAX, read_config_file
from moldau.server.config.load import InvalidConfigError, load_config

FILES = {
    "b.yaml": "broker_id: 5\nlog:\n  flush: never\n  segment_bytes: 64MiB\nkafka.addr: h:1\n",
    "b.yml": "broker_id: 5\nlog: {flush: never, segment_bytes: 64MiB}\nkafka:\n  addr: 'h:1'\n",
    "b.toml": 'broker_id = 5\nkafka.addr = "h:1"\n[log]\nflush = "never"\n'
    "segment_bytes = 67_108_864\n",
    "b.json": json.dumps(
        {"broker_id": 5, "log": {"flush": "never", "segment_bytes": "64MiB"}, "kafka.addr": "h:1"}
    ),
    "b.ini": "broker_id = 5\n; comment\n[log]\nflush = never\nsegment_bytes=64MiB # small\n"
    "[kafka]\naddr: h:1\n",
    "c.ini": "[moldau]\nbroker_id = 5\n[log]\nflush = never\nsegment_bytes=64MiB\n"
    "[kafka]\naddr=h:1\n",
    "b.env": "# comment\nexport MOLDAU_BROKER_ID=5\nMOLDAU_LOG__FLUSH='never' # why\nOTHER=x\n"
    'MOLDAU_LOG__SEGMENT_BYTES="64MiB"\nMOLDAU_KAFKA__ADDR=h:1 # here\n',
    "b.properties": "# comment\n! another\nbroker_id=5\nlog.flush = never\n"
    "log.segment_bytes: 64MiB\nkafka.addr=h:1\n",
}


@pytest.mark.parametrize("name", list(FILES))
def test_every_format_says_the_same(tmp_path, name):
    path = tmp_path / name
    path.write_text(FILES[name])
    config = load_config({"security.insecure": True}, {}, str(path)).config
    assert config.broker_id == 5
    assert config.log.flush is FlushPolicy.NEVER
    assert config.log.segment_bytes == 64 * 2**20
    assert str(config.kafka.addr) == "h:1"


def test_a_file_called_just_env_is_one(tmp_path):
    path = tmp_path / ".env"
    path.write_text("MOLDAU_BROKER_ID=9\n")
    assert load_config({}, {}, str(path)).config.broker_id == 9


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("b.yaml", "broker_id: 1\n\nlog:\n  flush: x\n", 4),
        ("b.toml", 'broker_id = 1\n[log]\nflush = "x"\n', 3),
        ("b.json", '{\n "log": {\n  "flush": "x"\n }\n}', 3),
        ("b.ini", "broker_id = 1\n[log]\n\nflush = x\n", 4),
        ("b.env", "\n\nexport MOLDAU_LOG__FLUSH=x\n", 3),
        ("b.properties", "# one\nlog.flush=x\n", 2),
    ],
)
def test_an_error_names_the_line(tmp_path, name, text, line):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidConfigError) as caught:
        load_config({}, {}, str(path))
    assert f"(file {path}:{line})" in str(caught.value)


def test_a_line_that_could_be_two_keys_is_not_guessed(tmp_path):
    path = tmp_path / "b.toml"
    path.write_text('[kafka]\naddr = "h:1"\n[raft]\naddr = "x"\n')
    with pytest.raises(InvalidConfigError) as caught:
        load_config({}, {}, str(path))
    assert f"(file {path})" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("b.yaml", "a: [1\n", r"b\.yaml:2 is not valid YAML"),
        ("b.yaml", "- a\n", "keys and values"),
        ("b.yaml", "broker_id: 1\nbroker_id: 2\n", "b.yaml:2: duplicate key broker_id"),
        ("b.yaml", "a: !!python/object:os.system {}\n", "not valid YAML"),
        ("b.yaml", "a: &x\n  b: *x\n", "not valid YAML"),
        ("b.yaml", "a: 1\n---\nb: 2\n", "not valid YAML"),
        ("b.yaml", "a: 2026-99-99\n", "not valid YAML"),
        ("b.toml", "a = \n", "not valid TOML"),
        ("b.json", "{", r"b\.json:1 is not valid JSON"),
        ("b.json", "[1]", "keys and values"),
        ("b.json", "[" * 100_000, "not valid JSON"),
        ("b.ini", "broker_id = 1\nno separator here\n", r"b\.ini:2 is not a valid INI"),
        ("b.ini", "broker_id = 1\nbroker_id = 2\n", r"b\.ini:2 is not a valid INI"),
        ("b.properties", "novalue\n", r"b\.properties:1 is not a valid line"),
        ("b.env", "A=1\nnovalue\n", r"b\.env:2 is not a valid line"),
        ("b.conf", "a=1", "unknown extension"),
        ("broker", "a=1", "unknown extension"),
    ],
)
def test_a_file_that_is_none_is_a_config_error(tmp_path, name, text, reason):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        read_config_file(str(path))


def test_an_empty_file_sets_nothing(tmp_path):
    for name in ("b.yaml", "b.toml", "b.ini", "b.env", "b.properties"):
        path = tmp_path / name
        path.write_text("# nothing\n")
        assert read_config_file(str(path)) == []


def test_a_byte_order_mark_is_no_part_of_a_key(tmp_path):
    path = tmp_path / "b.properties"
    path.write_bytes(b"\xef\xbb\xbfbroker_id=3\n")
    assert read_config_file(str(path))[0].key == "broker_id"


def test_binary_and_huge_files_are_refused(tmp_path):
    path = tmp_path / "b.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_config_file(str(path))
    path.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="larger than"):
        read_config_file(str(path))
    (tmp_path / "dir.yaml").mkdir()
    with pytest.raises(ConfigError, match="Is a directory"):
        read_config_file(str(tmp_path / "dir.yaml"))
