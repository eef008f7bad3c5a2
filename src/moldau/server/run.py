"""Runs the process of a broker: event loop, signals, logging, exit code."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from moldau.model import log_events as events
from moldau.model.errors import MoldauError, StorageError
from moldau.model.play import Playground
from moldau.server.audit_file import keep_audit_log
from moldau.server.broker import BrokerServer
from moldau.server.config.listener_rules import doubts
from moldau.server.config.listeners import listeners_for
from moldau.server.config.schema import LogFormat, ServerConfig
from moldau.server.config.security_schema import ListenerProtocol
from moldau.server.core_dumps import forbid_core_dumps
from moldau.server.derived_config import config_warnings, is_alone
from moldau.server.info import BrokerInfo
from moldau.server.logs import set_up_logging
from moldau.server.machine import Machine
from moldau.server.node.plan import log_lack_of_room
from moldau.server.node.process import NodeProcess
from moldau.server.play_faults import PlayFaultsMaker
from moldau.server.registration import SupersededError
from moldau.server.tracing import start_tracing

log = logging.getLogger(__name__)

EXIT_STORAGE = 74
"""The disk failed. The process ends at once, because the page cache cannot be trusted."""

_YOUNG_OBJECTS_MAX: Final = 5_000
"""Objects that may be made, beyond those that are gone again, before a collection."""

EXIT_INTERNAL_ERROR = 70
"""Internal error; the log has the details."""


def run_broker(
    config: ServerConfig,
    *,
    on_ready: Callable[[BrokerInfo], None],
    play: Playground | None = None,
    node: NodeProcess | None = None,
) -> int:
    """Run a broker until SIGTERM or SIGINT; returns the exit code.

    With `play`, clients that may alter the cluster can make faults. `node`: what this process is a
    part of, if it is not alone.

    Raises ConfigError, StorageError or CorruptionError if it cannot start.
    """
    levels = set_up_logging(config.logging, node.number if node else None)
    if node is None:
        log_lack_of_room(config, 1)
    forbid_core_dumps()
    if listeners_for(config, ListenerProtocol.GRPC):
        _load_grpc()
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    _spare_garbage_collector()
    keep_audit_log(Path(config.data_dir))
    machine = Machine()
    machine.log_levels = levels
    machine.node = node
    if play is not None:
        machine.play = PlayFaultsMaker(play)
    with asyncio.Runner(loop_factory=factory) as runner:
        end_tracing: Callable[[], None] | None = None
        try:
            if config.tracing.enabled:
                end_tracing = start_tracing(config)
            return runner.run(serve(config, machine, on_ready=on_ready))
        except MoldauError as error:
            if config.logging.format is LogFormat.JSON:
                # The command line prints it as text, which a collector of JSON does not read.
                log.critical("cannot start: %s", error, extra=events.START_FAILED())
            raise
        finally:
            if end_tracing is not None:
                end_tracing()


def _load_grpc() -> None:
    """Import gRPC before the event loop runs: the import would block it for over 0.1 s."""
    # Client errors do not belong in the broker's log; operators can set the variable.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import moldau.edge.grpc.listener  # noqa: F401


def _spare_garbage_collector() -> None:
    """Let the collector of cyclic garbage look at what requests make, seldom, and not at modules.

    A full collection over all that was imported blocks the event loop for some 40 ms, each time;
    and most objects of requests are gone, without its help, before it looks at them.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS_MAX, *gc.get_threshold()[1:])


async def serve(
    config: ServerConfig,
    machine: Machine,
    *,
    on_ready: Callable[[BrokerInfo], None],
    on_made: Callable[[BrokerServer], None] = lambda _: None,
) -> int:
    """Run a broker on the current event loop, also of a simulated machine; `on_made` gets the
    broker before it starts."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    def fence(error: StorageError) -> None:
        log.critical(
            "disk failure: %s; this broker stops, its data directory is left unchanged",
            error,
            extra=events.DISK_FAILED(),
        )
        end(EXIT_STORAGE)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, 0)

    def give_up(error: BaseException) -> None:
        if isinstance(error, SupersededError):
            log.critical("%s; this broker stops", error, extra=events.BROKER_SUPERSEDED())
        else:
            log.critical(
                "internal error: this broker stops", exc_info=error, extra=events.BROKER_FAILED()
            )
        end(EXIT_INTERNAL_ERROR)

    def leave() -> None:
        log.warning(
            "this broker was removed from its cluster: it stops", extra=events.BROKER_REMOVED()
        )
        end(0)

    server = BrokerServer(
        config,
        machine,
        on_storage_failure=fence,
        on_internal_error=give_up,
        on_removed=leave,
    )
    on_made(server)
    started = False
    try:
        # The start may wait for the cluster, and must still be interruptible by signals.
        starting = asyncio.ensure_future(server.start())
        waiting: set[asyncio.Future[Any]] = {starting, ended}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            log.info("stopping before the start has completed")
            starting.cancel()
            await asyncio.wait({starting})
        if starting.cancelled():
            return await ended
        info = starting.result()
        started = True
        if is_alone(config, info.broker_count):
            log.info("single-broker cluster: topics have one replica, and are lost with its disk")
            for doubt in config_warnings(config):
                log.warning(doubt, extra=events.CONFIG_UNMET())
        for danger in doubts(config):
            log.warning(danger, extra=events.CONFIG_UNSAFE())
        log.info(
            "broker %d serves %s: %d partitions, %d offline",
            info.broker_id,
            info.kafka_addr,
            info.partition_count,
            len(info.offline_partitions),
        )
        on_ready(info)
        code = await ended
        log.info("stopping")
        return code
    finally:
        if started:
            await server.stop()
            log.info("stopped")
        else:
            await server.abandon()
