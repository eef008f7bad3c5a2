"""How problems of a cluster are printed; `model/cluster_problems.py` has the table of them."""

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from moldau.cli.output import say
from moldau.model.cluster_problems import Problem, condition_of
from moldau.model.cluster_problems import problems as problems_of

if TYPE_CHECKING:
    from moldau.model.topology import Topology


def problem_rows(found: Iterable[Problem]) -> list[dict[str, Any]]:
    """For JSON and YAML."""
    return [{"problem": each.text, "remedy": each.remedy} for each in found]


def say_problems(found: Sequence[Problem]) -> None:
    for each in found:
        say(f"problem: {each.text}")
        if each.remedy:
            say(f"remedy:  {each.remedy}")


def problems(topology: "Topology", *, known_down: Container[int] = ()) -> list[Problem]:
    """What the topology shows; the brokers themselves are asked by `health.broker_problems`."""
    return problems_of(condition_of(topology), known_down=known_down)
