"""The texts made from the schema."""

from pathlib import Path

from moldau.server.config.keys import KEYS
from moldau.server.config.load import load_config
from moldau.server.config.render import render_file, render_page
from moldau.server.config.schema import ServerConfig

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_page_is_up_to_date():
    page = (ROOT / "docs/reference/configuration.md").read_text()
    assert page == render_page(), (
        "run: python -m moldau.server.config.render > docs/reference/configuration.md"
    )


def test_the_written_file_changes_nothing(tmp_path):
    path = tmp_path / "broker.yaml"
    path.write_text(render_file())
    resolved = load_config({}, {}, str(path))
    assert resolved.config == ServerConfig()
    assert {str(source) for source in resolved.sources.values()} == {"default"}


def test_every_line_of_the_written_file_can_be_uncommented(tmp_path):
    lines = render_file().splitlines()
    settings = [line[1:] for line in lines if line.startswith("#") and line[1:2].isalpha()]
    assert len(settings) == len(KEYS)
    path = tmp_path / "broker.yaml"
    path.write_text("\n".join(settings))
    resolved = load_config({}, {}, str(path))
    assert resolved.config == ServerConfig()
    assert {source.layer for source in resolved.sources.values()} == {"file"}


def test_chosen_values_are_set_in_the_written_file(tmp_path):
    path = tmp_path / "broker.yaml"
    path.write_text(render_file({"broker_id": 3, "data_dir": 'a "quoted" # dir', "rack": "7"}))
    config = load_config({}, {}, str(path)).config
    assert (config.broker_id, config.data_dir, config.rack) == (3, 'a "quoted" # dir', "7")
