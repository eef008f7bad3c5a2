"""The commands of `moldau backup`."""

import time
from typing import TYPE_CHECKING, Any

import click

from moldau.cli.backup.names import (
    check_chosen,
    names_options,
    new_names,
    topic_filter,
    topics_option,
    unmatched,
)
from moldau.cli.backup.options import (
    chosen_manifest,
    number_option,
    parallel_option,
    place_argument,
    progress,
    quiet_option,
    rate_option,
)
from moldau.cli.click_groups import LazyGroup
from moldau.cli.cluster.topology import http_option
from moldau.cli.errors import CommandError, ExitCode
from moldau.cli.options import Integer, output_option, yes_option
from moldau.cli.output import (
    confirm,
    counted,
    emit_rows,
    format_bytes,
    say,
)

if TYPE_CHECKING:
    from moldau.client.backup.manifests import Manifest, PartitionCopy
    from moldau.client.backup.stores import BackupStore


@click.group(
    "backup",
    cls=LazyGroup,
    examples=(
        "moldau backup create /backups/main",
        "moldau backup verify /backups/main",
        "moldau backup restore /backups/main --http new-cluster.example:8080",
    ),
)
def backup() -> None:
    """Back up a cluster to a directory or S3, verify it, and restore it.

    A backup has all topics with their offsets, the committed offsets of groups, the state of
    queues, users, ACLs and quotas. Each further one to the same place adds what is new.
    """


@backup.command(
    "create",
    examples=(
        "moldau backup create /backups/main",
        "moldau backup create s3://company-backups/main --mib-per-second 50",
        "moldau backup create /backups/orders --topic 'orders*' --keep 7",
    ),
)
@place_argument
@topics_option
@click.option("--no-security", is_flag=True, help="Without users, ACLs and quotas.")
@click.option(
    "--keep", type=Integer(1), metavar="N", help="Then delete all but the newest N backups."
)
@parallel_option
@rate_option
@quiet_option
@http_option
def create(
    place: str,
    topics: tuple[str, ...],
    no_security: bool,
    keep: int | None,
    parallel: int,
    rate: float | None,
    quiet: bool,
    http: str,
) -> None:
    """Make a backup; only what the last one in the same place does not have is copied.

    Cut short, there is no new backup; the same command continues.
    """
    import uuid

    from moldau.cli.backup.cluster import source_at
    from moldau.client.backup.create import BackupCreator, CreateOptions
    from moldau.client.backup.prune import check_selection
    from moldau.client.backup.stores import open_store

    store = open_store(place)
    selection = tuple(sorted(set(topics)))
    options = CreateOptions(
        topics=topic_filter(topics),
        selection=selection,
        parallel=parallel,
        with_security=not no_security,
    )
    if keep is not None:
        check_selection(store, selection)
    began = time.monotonic()
    with progress("backup", rate, quiet) as (pace, plan):
        creator = BackupCreator(
            source_at(http),
            store,
            options,
            new_id=lambda: uuid.uuid4().hex,
            pace=pace,
            on_plan=plan,
        )
        made = creator.run()
    seconds = max(time.monotonic() - began, 0.001)
    for pattern in unmatched(topics, [topic.name for topic in made.cluster.topics]):
        say(f"note: the cluster has no topic {pattern}")
    if creator.damaged:
        say(f"note: the list of backup {creator.damaged} is damaged, and was not continued from")
    for partition in creator.lost:
        say(
            f"note: {partition} no longer has the records of the last backup, and was copied "
            "whole; only earlier backups have what it lost"
        )
    say(
        f"backup {made.number} in {store.place}: {counted(len(made.cluster.topics), 'topic')}, "
        f"{counted(len(made.partitions), 'partition')}, {counted(made.offsets, 'offset')}, "
        f"{format_bytes(made.size)}; {format_bytes(pace.bytes)} of it new, in {seconds:.1f} s "
        f"({format_bytes(pace.bytes / seconds)}/s)"
    )
    if keep is not None and creator.lost:
        say("note: no backup was deleted; do that by hand: moldau backup prune")
    elif keep is not None:
        _prune(store, keep)


@backup.command(
    "list",
    examples=(
        "moldau backup list /backups/main",
        "moldau backup list /backups/main --topics",
        "moldau backup list s3://company-backups/main -o json",
    ),
)
@place_argument
@click.option("--topics", is_flag=True, help="The topics of a backup instead.")
@number_option
@output_option
def list_backups(place: str, topics: bool, number: int | None, output: str) -> None:
    """List the backups in a place, or the topics of one."""
    from moldau.client.backup.manifests import (
        BackupDamagedError,
        load_manifest,
        manifest_numbers,
        require_mark,
    )
    from moldau.client.backup.stores import open_store

    store = open_store(place)
    if topics:
        emit_rows(_topic_rows(chosen_manifest(store, number)), output, name="topic")
        return
    require_mark(store)
    rows: list[dict[str, Any]] = []
    damaged: list[BackupDamagedError] = []
    for each in manifest_numbers(store):
        try:
            found = load_manifest(store, each)
        except BackupDamagedError as error:
            damaged.append(error)
            continue
        taken = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.started_ms / 1000))
        rows.append(
            {
                "number": found.number,
                "taken": taken,
                "topics": len(found.cluster.topics),
                "partitions": len(found.partitions),
                "groups": len(found.groups),
                "queues": len(found.cluster.queue_groups),
                "users": len(found.cluster.security.users),
                "bytes": found.size,
                "version": found.cluster.version,
            }
        )
    emit_rows(
        rows,
        output,
        name="number",
        if_empty="no finished backup; one that was cut short continues with: moldau backup create",
    )
    if damaged:
        raise damaged[0]


def _topic_rows(manifest: "Manifest") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    partitions: dict[str, list[PartitionCopy]] = {}
    for each in manifest.partitions:
        partitions.setdefault(each.topic, []).append(each)
    for topic in manifest.cluster.topics:
        copies = partitions.get(topic.name, [])
        rows.append(
            {
                "topic": topic.name,
                "partitions": topic.partitions,
                "offsets": sum(each.end - each.start for each in copies),
                "bytes": sum(each.size for each in copies),
            }
        )
    return rows


@backup.command(
    "verify",
    examples=(
        "moldau backup verify /backups/main",
        "moldau backup verify s3://company-backups/main --number 3",
        "moldau backup verify /backups/main --against --http new-cluster.example:8080",
    ),
)
@place_argument
@number_option
@click.option(
    "--against", is_flag=True, help="Compare with the records of the cluster at --http, too."
)
@names_options
@parallel_option
@quiet_option
@output_option
@http_option
def verify(
    place: str,
    number: int | None,
    against: bool,
    prefix: str,
    renames: tuple[str, ...],
    parallel: int,
    quiet: bool,
    output: str,
    http: str,
) -> int:
    """Read a whole backup: checksums, and that no offset is missing.

    With --against, every batch is compared with that of the cluster at the same offset.
    """
    from moldau.cli.backup.cluster import source_at
    from moldau.client.backup.stores import open_store
    from moldau.client.backup.verify import Verifier

    names = new_names(prefix, renames)
    store = open_store(place)
    manifest = chosen_manifest(store, number)
    check_chosen(manifest, renames=renames)
    source = source_at(http) if against else None
    with progress("verify", None, quiet) as (pace, plan):
        plan(manifest.offsets)
        checker = Verifier(
            store, manifest, against=source, name_of=names, parallel=parallel, pace=pace
        )
        checks = checker.run()
    bad = [check for check in checks if check.problem]
    if output != "table":
        emit_rows([check._asdict() for check in checks], output, name="topic")
        return ExitCode.FAILED if bad else ExitCode.OK
    for check in bad:
        say(f"{check.topic}-{check.partition}: {check.problem}")
    if bad:
        raise CommandError(
            f"backup {manifest.number} in {store.place}: "
            f"{counted(len(bad), 'partition')} of {len(checks)} with problems",
            hint="the topics without problems can be restored: moldau backup restore --topic",
        )
    said = "identical in the cluster" if against else "whole and undamaged"
    say(
        f"backup {manifest.number} in {store.place} is {said}: "
        f"{counted(len(checks), 'partition')}, {counted(manifest.offsets, 'offset')}, "
        f"{format_bytes(manifest.size)}"
    )
    return ExitCode.OK


@backup.command(
    "restore",
    examples=(
        "moldau backup restore /backups/main --http new-cluster.example:8080",
        "moldau backup restore /backups/main --topic orders --rename orders=orders-yesterday",
        "moldau backup restore s3://company-backups/main --number 3 --prefix old-",
    ),
)
@place_argument
@number_option
@topics_option
@names_options
@click.option("--no-groups", is_flag=True, help="Without the committed offsets of groups.")
@click.option("--no-queues", is_flag=True, help="Without the state of queues.")
@click.option("--no-security", is_flag=True, help="Without users, ACLs and quotas.")
@click.option(
    "--replication-factor",
    type=Integer(1),
    metavar="N",
    help="Of the restored topics.  [default: as it was, or the number of brokers]",
)
@parallel_option
@rate_option
@quiet_option
@http_option
def restore(
    place: str,
    number: int | None,
    topics: tuple[str, ...],
    prefix: str,
    renames: tuple[str, ...],
    no_groups: bool,
    no_queues: bool,
    no_security: bool,
    replication_factor: int | None,
    parallel: int,
    rate: float | None,
    quiet: bool,
    http: str,
) -> int:
    """Restore topics with the same offsets, and what refers to them.

    Topics that exist are never changed. Users, ACLs and quotas are restored with whole backups
    only, not with --topic. Cut short, the same command continues.
    """
    from moldau.cli.backup.cluster import source_at
    from moldau.client.backup.restore import BackupRestorer, RestoreOptions
    from moldau.client.backup.stores import open_store

    names = new_names(prefix, renames)
    store = open_store(place)
    manifest = chosen_manifest(store, number)
    check_chosen(manifest, topics, renames)
    is_renamed = bool(prefix or renames)
    options = RestoreOptions(
        topics=topic_filter(topics),
        name_of=names,
        parallel=parallel,
        with_groups=not no_groups and not is_renamed,
        with_queues=not no_queues and not is_renamed,
        with_security=not no_security and not topics and not is_renamed,
        replication_factor=replication_factor or 0,
    )
    began = time.monotonic()
    with progress("restore", rate, quiet) as (pace, plan):
        restorer = BackupRestorer(source_at(http), store, manifest, options, pace=pace)
        restorer.check()
        plan(restorer.offsets)
        done = restorer.run()
    seconds = max(time.monotonic() - began, 0.001)
    if restorer.finished:
        say("note: an earlier run had restored all of it; this one released the last topics")
    say(
        f"restored backup {manifest.number}: {counted(done.topics, 'topic')}, "
        f"{counted(done.partitions, 'partition')}, {counted(done.offsets, 'offset')}, "
        f"{format_bytes(done.bytes)} in {seconds:.1f} s "
        f"({format_bytes(pace.bytes / seconds)}/s); {counted(done.groups, 'group')}, "
        f"{counted(done.queues, 'queue')}, {counted(done.users, 'user')}"
    )
    for group in restorer.busy_groups:
        say(
            f"note: group {group} has members, and its offsets were not restored; stop them and "
            f"set the offsets: moldau group seek {group}"
        )
    for group in restorer.busy_queues:
        say(
            f"note: queue {group} exists in the cluster, and its state was not restored: it goes "
            "on as it is there; to have both, restore the topics with --prefix"
        )
    for topic in restorer.expiring(int(time.time() * 1000)):
        say(
            f"note: records of {names(topic)} are older than its retention.ms and will be deleted; "
            f"keep them: moldau topic alter {names(topic)} --set retention.ms=-1"
        )
    if done.offsets:
        say(
            "note: restart producers that ran in this cluster before the restore and write to its "
            "topics: one may have the producer id of restored records"
        )
    return ExitCode.FAILED if restorer.busy_groups or restorer.busy_queues else ExitCode.OK


@backup.command(
    "prune",
    examples=(
        "moldau backup prune /backups/main --keep 7",
        "moldau backup prune /backups/main --keep 1 -y",
        "moldau backup prune s3://company-backups/main --keep 30 -y",
    ),
)
@place_argument
@click.option("--keep", type=Integer(1), required=True, metavar="N", help="The newest N backups.")
@yes_option
def prune(place: str, keep: int, yes: bool) -> None:
    """Delete old backups, and the files that no other backup needs."""
    from moldau.client.backup.manifests import manifest_numbers, require_mark
    from moldau.client.backup.stores import open_store

    store = open_store(place)
    require_mark(store)
    old = manifest_numbers(store)[:-keep]
    if old:
        confirm(f"Delete {counted(len(old), 'backup')} in {store.place}?", yes=yes)
    _prune(store, keep)


def _prune(store: "BackupStore", keep: int) -> None:
    from moldau.client.backup.prune import prune as prune_store

    pruned = prune_store(store, keep)
    say(
        f"deleted {counted(len(pruned.backups), 'old backup')} and "
        f"{counted(pruned.files, 'file')} that no other needs"
    )
