"""What the command line of a kind of pipelines makes of words."""

from collections.abc import Iterable
from typing import Any

from moldau.cli.pipeline.kinds import Verb, kind_command


def settings_from(kind: str, words: Iterable[str]) -> Any:
    """The settings that `moldau pipeline run KIND WORDS` would run."""
    told: list[Any] = []

    def act(settings: Any, values: object) -> int:
        told.append(settings)
        return 0

    command = kind_command(Verb(name="run", act=act, options=()), kind)
    shared = ("--name", "n", "-b", "b:1", "--home", "/nowhere")
    command.main([*words, *shared], standalone_mode=False)
    return told[0]
