"""Plans the processes of a node: their addresses, directories and configurations.

All accept at the configured addresses of Kafka, HTTP and gRPC. Process k has each of them once more
for itself, at the configured port + k, which brokers advertise: a client that looks for a partition
has to reach that very process. Of peers, which look for one broker only, process 1 keeps the
configured port, and process k has the port + k - 1.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from moldau.model.errors import ConfigError
from moldau.model.topology import Endpoint
from moldau.server.config.listener_rules import WILDCARDS
from moldau.server.config.listeners import SECTIONS, listeners_of
from moldau.server.config.schema import LOOPBACK, PROCESSES_MAX, Processes, ServerConfig
from moldau.server.config.security_schema import ListenerConfig, ListenerProtocol, Listeners
from moldau.server.descriptors import raise_limit
from moldau.server.node.cores import usable_cores
from moldau.server.node.directories import (
    check_directories,
    directory_of,
    processes_needed,
    stored_processes,
)
from moldau.server.node.files import files_problem, partitions_stored

log = logging.getLogger(__name__)

_PORT_MAX: Final = 65535


class Plan(Struct, frozen=True, kw_only=True):
    """Of a whole node."""

    config: ServerConfig
    """As it was given; addresses at port 0 have their port."""
    count: int

    @property
    def root(self) -> Path:
        return Path(self.config.data_dir).absolute()

    @property
    def directories(self) -> tuple[str, ...]:
        return tuple(str(directory_of(self.root, number)) for number in self.numbers)

    @property
    def numbers(self) -> range:
        return range(1, self.count + 1)

    def shared(self) -> list[ListenerConfig]:
        """The listeners that have an address for the whole node."""
        return [one for one in listeners_of(self.config) if _is_shared(one)]

    def of_process(self, number: int, join: Endpoint | None) -> ServerConfig:
        """The configuration of one process. `join`: the HTTP address of another process of the
        node, whose cluster it joins; None: the first one finds or bootstraps it as configured."""
        moved = {one.setting: _moved(one, number) for one in listeners_of(self.config)}
        config = replace(
            self.config,
            processes=Processes(1),
            data_dir=str(directory_of(self.root, number)),
            listeners=Listeners(moved[one.setting] for one in self.config.listeners),
        )
        for protocol, section in SECTIONS.items():
            own = moved.get(f"{section}.addr")
            if own is not None and own.protocol is protocol:
                settings = getattr(config, section)
                settings = replace(settings, addr=own.address, advertised=own.advertised)
                config = replace(config, **{section: settings})
        if join is None and number == 1:
            return config
        return replace(config, join_addr=join, bootstrap=False, initial_members=None)

    def http_of(self, number: int) -> Endpoint | None:
        """Where other processes of the node reach one over HTTP: by its advertised name, for which
        certificates are made, else on this machine. None: at a port that it chooses itself."""
        for listener in listeners_of(self.config):
            if listener.protocol is not ListenerProtocol.HTTP:
                continue
            moved = _moved(listener, number)
            if moved.advertised is not None and moved.advertised.port:
                return moved.advertised
            return _local(moved.address) if moved.address.port else None
        return None


def _local(address: Endpoint) -> Endpoint:
    return address._replace(host=LOOPBACK) if address.host in WILDCARDS else address


def _is_shared(listener: ListenerConfig) -> bool:
    return listener.protocol is not ListenerProtocol.PEERS


def _moved(listener: ListenerConfig, number: int) -> ListenerConfig:
    """As one process has it."""
    by = number if _is_shared(listener) else number - 1
    advertised = listener.advertised
    return replace(
        listener,
        address=_shifted(listener.address, by),
        advertised=None if advertised is None else _shifted(advertised, by),
    )


def _shifted(address: Endpoint, by: int) -> Endpoint:
    return address._replace(port=address.port + by if address.port else 0)


def process_count(
    config: ServerConfig,
    cores: Callable[[], int] = usable_cores,
    file_limit: Callable[[], int | None] = raise_limit,
) -> int:
    """How many processes the configuration means: `auto` never more than there is room for, and
    never fewer than the data directory has. Raises ConfigError if that has more."""
    root = Path(config.data_dir).absolute()
    stored = stored_processes(root)
    count = int(config.processes)
    if not count:
        room = _Room(config, file_limit)
        needed = processes_needed(stored)
        more = range(needed + 1, min(cores(), PROCESSES_MAX) + 1)
        # What has no room for some processes has none for more of them.
        count = needed + bisect_left(more, True, key=lambda one: room.problem(one) is not None)
    check_directories(root, stored, count)
    return count


class _Room:
    """Of ports and open files."""

    def __init__(self, config: ServerConfig, file_limit: Callable[[], int | None]) -> None:
        self._config = config
        self._file_limit = file_limit()
        self._partitions = partitions_stored(Path(config.data_dir).absolute())

    def problem(self, count: int) -> str | None:
        """Why it is too small for so many processes; None: it is not."""
        lacking = _port_problem(self._config, count)
        if lacking is not None:
            return str(lacking)
        return files_problem(count, self._file_limit, self._partitions)


def log_lack_of_room(
    config: ServerConfig,
    count: int,
    cores: Callable[[], int] = usable_cores,
    file_limit: Callable[[], int | None] = raise_limit,
) -> None:
    """Log it if `auto` starts fewer processes than there are cores."""
    if config.processes or count >= min(cores(), PROCESSES_MAX):
        return
    if (problem := _Room(config, file_limit).problem(count + 1)) is not None:
        log.info(
            "processes is auto and starts %d on %d cores, since there is room for no more: %s",
            count,
            cores(),
            problem,
        )


def make_plan(config: ServerConfig, count: int) -> Plan:
    """Raises ConfigError for what does not fit several processes."""
    if config.broker_id is not None:
        error = ConfigError(
            f"broker_id is {config.broker_id}, but processes is {count}: an id is of one broker"
        )
        error.hint = (
            "leave broker_id out: a data directory keeps its id, and the cluster chooses new ones"
        )
        raise error
    if (problem := _port_problem(config, count)) is not None:
        raise problem
    return Plan(config=config, count=count)


def _port_problem(config: ServerConfig, count: int) -> ConfigError | None:
    """Why so many processes have no ports; None: they have."""
    taken: dict[int, list[tuple[str, str]]] = {}
    for listener, whose, address in _addresses(config, count):
        key, port = listener.setting, address.port
        if port > _PORT_MAX:
            error = ConfigError(f"{key} leaves no port for {whose}: {port} is above {_PORT_MAX}")
            error.hint = f"choose a port for {key} that is lower by {count}"
            return error
        for host, other in taken.setdefault(port, []):
            if host == address.host or {host, address.host} & WILDCARDS:
                error = ConfigError(
                    f"{key} needs port {port} for {whose}, which is that of {other}"
                )
                error.hint = (
                    f"with {count} processes a listener takes the {count} ports after its own, "
                    "too: choose ports that are further apart"
                )
                return error
        taken[port].append((address.host, f"{key} for {whose}"))
    for listener in listeners_of(config):
        advertised = _moved(listener, count).advertised
        if advertised is not None and advertised.port > _PORT_MAX:
            key = listener.setting.removesuffix(".addr")
            error = ConfigError(
                f"the advertised address of {key} leaves no port for process {count}: "
                f"{advertised.port} is above {_PORT_MAX}"
            )
            error.hint = f"advertise a port that is lower by {count}"
            return error
    return None


def _addresses(config: ServerConfig, count: int) -> Iterator[tuple[ListenerConfig, str, Endpoint]]:
    """Every address that is bound, and by whom."""
    for listener in listeners_of(config):
        if not listener.address.port:
            continue
        if _is_shared(listener):
            yield listener, "the node", listener.address
        for number in range(1, count + 1):
            yield listener, f"process {number}", _moved(listener, number).address
