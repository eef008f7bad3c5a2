"""Which kinds of pipelines there are."""

import pytest

from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.kinds import KINDS, load, settings_type

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_has_settings_and_what_runs_it(kind):
    module = load(kind)
    assert module.SETTINGS is settings_type(kind)
    assert module.SETTINGS.kind == kind
    assert module.SETTINGS.summary
    assert callable(module.plan)
    assert callable(module.run)


@pytest.mark.parametrize("find", [load, settings_type])
def test_an_unknown_kind_is_refused_with_those_that_are_known(find):
    with pytest.raises(InvalidArgumentError, match="unknown kind of pipeline 'archvie'") as caught:
        find("archvie")
    assert "archive, compact" in caught.value.hint


def test_each_kind_says_whether_it_runs_continuously_and_needs_brokers():
    kinds = KINDS.items()
    assert {name for name, one in kinds if one.can_run_continuously} == {"archive", "aggregate"}
    assert {name for name, one in kinds if not one.needs_brokers} == {"compact"}
