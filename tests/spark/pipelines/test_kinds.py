"""Which kinds of pipelines there are."""

import pytest

from moldau.cli.pipeline.kinds import COMMANDS
from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines.kinds import _LOADERS, load

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("kind", _LOADERS)
def test_a_kind_has_what_runs_it_and_a_command_line(kind):
    module = load(kind)
    assert module.SETTINGS.kind == kind
    assert callable(module.plan)
    assert callable(module.run)
    assert COMMANDS[kind].SUMMARY


def test_all_kinds_are_on_the_command_line_in_the_same_order():
    assert list(COMMANDS) == list(_LOADERS)


def test_an_unknown_kind_is_refused_with_those_that_are_known():
    with pytest.raises(InvalidArgumentError, match="unknown kind of pipeline 'archvie'") as caught:
        load("archvie")
    assert "archive, compact" in caught.value.hint
