"""Levels of the log, by component."""

from pathlib import Path

import moldau
from moldau.model.log_levels import (
    COMPONENTS,
    DEFAULT,
    NAMES,
    LogLevel,
    LogLevels,
    component_of,
    parse_level,
)


def test_a_logger_belongs_to_the_component_that_names_it_most_exactly():
    assert component_of("moldau.net.listener") == "net"
    assert component_of("moldau.net.peers.link") == "peers"
    assert component_of("moldau.net.tls.contexts") == "security"
    assert component_of("moldau.server.run") == "server"
    assert component_of("uvicorn.error") == "http"
    assert component_of("asyncio") == DEFAULT


def test_the_loggers_of_components_exist():
    for component in COMPONENTS.values():
        for logger in component.loggers:
            package, *inside = logger.split(".")
            if package == "moldau":
                place = Path(moldau.__file__).parent.joinpath(*inside)
                assert place.is_dir() or place.with_suffix(".py").is_file(), logger


def test_a_level_of_its_own_wins_until_it_is_reset():
    applied: dict[str, LogLevel] = {}
    levels = LogLevels(LogLevel.INFO, {"raft": LogLevel.DEBUG}, applied.__setitem__)
    assert applied == dict.fromkeys(NAMES, LogLevel.INFO) | {"raft": LogLevel.DEBUG}
    levels.set({DEFAULT: LogLevel.ERROR, "queues": LogLevel.WARNING})
    assert (applied["net"], applied["queues"], applied["raft"]) == ("error", "warning", "debug")
    levels.set({"raft": LogLevel.ERROR, "queues": None})
    assert (applied["raft"], applied["queues"]) == ("error", "error")
    levels.set({"raft": None, DEFAULT: None})
    shown = {each.component: (each.level, each.configured) for each in levels.shown()}
    assert shown["raft"] == ("debug", "debug")
    assert shown["queues"] == ("info", "info")


def test_levels_may_be_written_as_kafka_does():
    assert parse_level("WARN") is LogLevel.WARNING
    assert parse_level("Debug ") is LogLevel.DEBUG
    assert parse_level("loud") is None
