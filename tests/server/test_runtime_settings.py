"""Settings that change at run time are the same in the schema and in the metadata."""

import pytest

from moldau.metadata.broker_config_table import RUNTIME_CONFIGS
from moldau.metadata.image import CLUSTER_DEFAULT, Image
from moldau.metadata.topic_configs import BROKER_CONFIGS, broker_layers, runtime_value
from moldau.model.ids import BrokerId
from moldau.server.config.keys import KEYS
from moldau.server.config.load import load_config
from moldau.server.derived_config import read_only_configs, runtime_defaults

MARKED = {key.setting.runtime: key for key in KEYS.values() if key.setting.runtime}


def test_every_mark_in_the_schema_is_a_setting_of_the_metadata():
    assert set(MARKED) <= set(BROKER_CONFIGS)
    assert set(RUNTIME_CONFIGS) <= set(MARKED)
    assert len(MARKED) == sum(bool(key.setting.runtime) for key in KEYS.values())


@pytest.mark.parametrize("name", RUNTIME_CONFIGS)
def test_bounds_and_defaults_are_those_of_the_schema(name):
    definition, key = RUNTIME_CONFIGS[name], MARKED[name]
    assert (definition.least, definition.default) == (key.setting.min, str(key.default))


def test_what_nobody_set_is_a_default():
    assert runtime_defaults(load_config({}, {}).config) == {}
    for name, key in MARKED.items():
        assert BROKER_CONFIGS[name][0].default == str(key.default), name


def test_what_changes_at_run_time_is_not_listed_as_read_only():
    config = load_config({"kafka.connections_max": 5000}, {}).config
    defaults = runtime_defaults(config)
    assert defaults == {"max.connections": "5000"}
    assert not set(MARKED) & {one.name for one in read_only_configs(config, BrokerId(1))}


def test_one_broker_wins_over_all_which_win_over_the_start():
    me = BrokerId(1)
    static = {"max.connections": "7"}

    def value(**overrides: dict[str, str]) -> object:
        numbers = {"me": me, "all": CLUSTER_DEFAULT}
        image = Image(broker_configs={numbers[who]: given for who, given in overrides.items()})
        return runtime_value("max.connections", broker_layers(image, me, static))

    assert value() == 7
    assert value(all={"max.connections": "8"}) == 8
    assert value(all={"max.connections": "8"}, me={"max.connections": "9"}) == 9
