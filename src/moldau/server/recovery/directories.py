"""The steps of a recovery on data directories of this machine, locked meanwhile."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from moldau.log.datadir import DirectoryLock
from moldau.log.os_filesystem import OsFiles
from moldau.model.errors import ConfigError, CorruptionError, MoldauError, StorageError
from moldau.server.recovery.apply import State, apply_plan, check_applicable
from moldau.server.recovery.plan import Plan, PlanError, PlannedSurvivor
from moldau.server.recovery.survey import SURVEY_FORMAT, Survey, survey_directory


@contextmanager
def _opened(root: Path) -> Iterator[OsFiles]:
    """The files of a stopped broker. Raises ConfigError while it runs; names the directory in
    errors."""
    lock = DirectoryLock(root)
    lock.acquire_unchanged()
    try:
        yield OsFiles(root)
    except OSError as error:
        raise StorageError(f"cannot use the data directory {root}: {error}") from error
    except (ConfigError, CorruptionError) as error:
        failure: MoldauError = type(error)(f"{root}: {error}")
        failure.hint = error.hint
        raise failure from error
    finally:
        lock.release()


def collect(root: Path) -> Survey:
    """Changes nothing. Raises ConfigError, CorruptionError, StorageError."""
    with _opened(root) as files:
        return survey_directory(files)


def read_survey(path: Path) -> Survey:
    """A file that `collect` wrote. Raises PlanError, OSError."""
    try:
        survey = msgspec.json.decode(path.read_bytes(), type=Survey)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PlanError(
            f"{path} is not the survey of a data directory ({error})",
            "make one: moldau cluster recover collect --data-dir DIR --file FILE",
        ) from error
    if survey.format != SURVEY_FORMAT:
        raise PlanError(
            f"{path} has format {survey.format}, and this version reads {SURVEY_FORMAT}",
            "use one version of moldau for all steps of a recovery",
        )
    return survey


def check(root: Path, plan: Plan) -> tuple[PlannedSurvivor, State]:
    """What is to be done in this directory. Changes nothing. Raises as apply_plan."""
    with _opened(root) as files:
        _check_owner(root)
        return check_applicable(files, plan)


def carry_out(root: Path, plan: Plan, on_replicas: Callable[[int], None]) -> None:
    """`on_replicas` gets the count of those that are done. Raises PlanError, ConfigError,
    CorruptionError, StorageError."""
    with _opened(root) as files:
        _check_owner(root)
        apply_plan(files, plan, on_replicas)


def _check_owner(root: Path) -> None:
    """Files that another user writes could not be read by the broker. Raises ConfigError."""
    owner = root.stat().st_uid
    if owner != os.geteuid():
        error = ConfigError(
            f"it belongs to user {owner}, and this process runs as user {os.geteuid()}"
        )
        error.hint = f"run the command as the user of the broker: sudo -u '#{owner}' moldau …"
        raise error
