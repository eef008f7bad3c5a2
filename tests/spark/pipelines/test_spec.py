"""Which kinds of pipelines there are."""

import pytest

from moldau.cli.pipeline.kinds import module_of
from moldau.client.errors import InvalidArgumentError
from moldau.spark.pipelines import spec

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("kind", spec.KINDS)
def test_a_kind_has_what_runs_it_and_a_command_line(kind):
    module = spec.load(kind)
    assert module.SETTINGS.kind == kind
    assert callable(module.plan)
    assert callable(module.run)
    assert module_of(kind).SUMMARY


def test_an_unknown_kind_is_refused_with_those_that_are_known():
    with pytest.raises(InvalidArgumentError, match="no kind of pipeline 'archvie'") as caught:
        spec.load("archvie")
    assert "archive, compact" in caught.value.hint
