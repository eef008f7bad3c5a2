"""Kafka's own tools over TLS, on request (MOLDAU_TEST_LANGUAGES=java): what operators type."""

from collections.abc import Callable, Iterator

import pytest
from doc_pages import ROOT, all_blocks
from java_tools import JavaTools, fetch, why_missing
from listeners_world import MTLS, PASSWORD, WAYS, ListenersWorld, listeners_world
from sasl_clients import ClientTls, Credentials

from moldau.testing.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.system, pytest.mark.timeout(1200)]

SCRAM = "SCRAM-SHA-512"
CONSUME = ("--from-beginning", "--max-messages", "3", "--timeout-ms", "60000")


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> JavaTools:
    folder = tmp_path_factory.mktemp("tools")
    if reason := why_missing() or fetch(folder):
        pytest.skip(reason)
    return JavaTools(folder)


@pytest.fixture(scope="module")
def world(tools: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListenersWorld]:
    with listeners_world(tmp_path_factory.mktemp("secured")) as started:
        yield started


@pytest.fixture
def run_admin(tools: JavaTools, world: ListenersWorld) -> Callable[..., str]:
    """Run a tool as the local administrator."""

    def run(tool: str, *arguments: str) -> str:
        admin = world.credentials(SCRAM, "moldau-admin", world.admin_token())
        return tools.run(tool, world.bootstrap(SCRAM), admin, *arguments)

    return run


def test_loggers_are_set_as_the_page_says(run_admin: Callable[..., str]) -> None:
    (block,) = [
        block
        for block in all_blocks(ROOT / "docs/operate/logs.md")
        if block.text.startswith("kafka-configs")
    ]
    usual = "kafka-configs --bootstrap-server localhost:9092 "
    shown, _ = [
        run_admin("kafka-configs", *line.removeprefix(usual).split())
        for line in block.text.splitlines()
    ]
    assert "raft=info" in shown
    broker = ("--entity-type", "broker-loggers", "--entity-name", "1")
    assert "raft=debug" in run_admin("kafka-configs", *broker, "--describe")


@pytest.mark.parametrize("way", WAYS)
def test_the_console_sends_and_reads_what_it_may(
    tools: JavaTools, world: ListenersWorld, way: str, new_name: Callable[[str], str]
) -> None:
    bootstrap, alice = world.bootstrap(way), world.credentials(way)
    topic = world.create_topic(new_name("a-topic"))
    on = ("--topic", topic)
    sent = tools.run("kafka-console-producer", bootstrap, alice, *on, given="one\ntwo\nthree\n")
    assert "ERROR" not in sent
    read = tools.run(
        "kafka-console-consumer", bootstrap, alice, *on, "--group", new_name("a-group"), *CONSUME
    )
    assert read.splitlines()[:3] == ["one", "two", "three"], read


@pytest.mark.safety
@pytest.mark.parametrize("way", [SCRAM, MTLS])
def test_the_console_goes_on_while_certificates_are_rotated(
    tools: JavaTools, world: ListenersWorld, way: str, new_name: Callable[[str], str]
) -> None:
    bootstrap, alice = world.bootstrap(way), world.credentials(way)
    on = ("--topic", world.create_topic(new_name("a-topic")))
    group = ("--group", new_name("a-group"), "--from-beginning")
    with (
        tools.started("kafka-console-consumer", bootstrap, alice, *on, *group) as reader,
        tools.started("kafka-console-producer", bootstrap, alice, *on) as writer,
    ):

        def sent() -> list[str]:
            """One more line, when it was read."""
            line = f"line {len(reader.lines())}"
            writer.type(line)
            wait_until(lambda: line in reader.lines(), f"{line} is read", describe=reader.lines)
            return reader.lines()

        sent()
        connections, old = world.connections(), world.certificate(way)
        world.tls.renew()
        wait_until(lambda: sent() and world.shows_another(way, old), "a new certificate")
        printed = [sent() for _ in range(5)][-1]
        assert printed == [f"line {number}" for number in range(len(printed))]
        assert world.connections() == connections
        assert "ERROR" not in "".join(writer.lines())


@pytest.mark.parametrize("way", [SCRAM, MTLS])
def test_the_console_is_refused_what_it_may_not(
    tools: JavaTools, world: ListenersWorld, way: str, new_name: Callable[[str], str]
) -> None:
    bootstrap, alice = world.bootstrap(way), world.credentials(way)
    closed = ("--topic", world.create_topic(new_name("closed")))
    sent = tools.run("kafka-console-producer", bootstrap, alice, *closed, given="one\n")
    assert "TopicAuthorizationException" in sent
    open_topic = ("--topic", world.create_topic(new_name("a-topic")))
    read = tools.run(
        "kafka-console-consumer", bootstrap, alice, *open_topic, "--group", "closed", *CONSUME
    )
    assert "GroupAuthorizationException" in read


def test_wrong_credentials_are_refused(
    tools: JavaTools, world: ListenersWorld, new_name: Callable[[str], str]
) -> None:
    on = ("--topic", "a-topic", "--group", "a-group", *CONSUME)
    wrong = world.credentials(SCRAM, new_name("nobody"), "wrong")
    said = tools.run("kafka-console-consumer", world.bootstrap(SCRAM), wrong, *on)
    assert "SaslAuthenticationException: Authentication failed: wrong user or password" in said
    bare = Credentials("", tls=ClientTls(str(world.tls.ca_file)))
    said = tools.run("kafka-console-consumer", world.bootstrap(MTLS), bare, *on)
    assert "SslAuthenticationException" in said


def test_kafka_acls_adds_lists_and_removes_rules(
    tools: JavaTools, world: ListenersWorld, run_admin: Callable[..., str]
) -> None:
    bob = ("--allow-principal", "User:bob")
    run_admin("kafka-acls", "--add", *bob, "--producer", "--topic", "orders")
    prefixed = ("--topic", "or", "--group", "or", "--resource-pattern-type", "prefixed")
    run_admin("kafka-acls", "--add", *bob, "--consumer", *prefixed)
    deny = ("--deny-principal", "User:bob", "--deny-host", "10.0.0.1")
    run_admin("kafka-acls", "--add", *deny, "--operation", "All", "--cluster")
    match = ("--topic", "orders", "--resource-pattern-type", "match")
    listed = run_admin("kafka-acls", "--list", *match)
    assert "name=or, patternType=PREFIXED" in listed
    assert "(principal=User:bob, host=*, operation=WRITE, permissionType=ALLOW)" in listed
    listed = run_admin("kafka-acls", "--list", "--cluster")
    assert "(principal=User:bob, host=10.0.0.1, operation=ALL, permissionType=DENY)" in listed
    write = (*bob, "--operation", "Write", "--topic", "orders")
    run_admin("kafka-acls", "--remove", "--force", *write)
    listed = run_admin("kafka-acls", "--list", "--topic", "orders")
    assert "operation=DESCRIBE" in listed
    assert "operation=WRITE" not in listed
    said = tools.run(
        "kafka-acls", world.bootstrap(SCRAM), world.credentials(SCRAM), "--add", *write
    )
    assert "ClusterAuthorizationException" in said
    assert "operation=WRITE" not in run_admin("kafka-acls", "--list", "--topic", "orders")


def test_kafka_configs_sets_passwords_that_work(
    tools: JavaTools, world: ListenersWorld, run_admin: Callable[..., str]
) -> None:
    carol = ("--entity-type", "users", "--entity-name", "carol")
    both = f"SCRAM-SHA-256=[iterations=8192,password={PASSWORD}],SCRAM-SHA-512=[password=other]"
    said = run_admin("kafka-configs", "--alter", "--add-config", both, *carol)
    assert "Completed updating config for user carol" in said
    listed = run_admin("kafka-configs", "--describe", *carol)
    assert "SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=4096" in listed
    # Logged in, and without rights.
    ours = ("--topic", "a-topic", "--group", "a-group", *CONSUME)
    for way, expected in (("SCRAM-SHA-256", "AuthorizationEx"), (SCRAM, "AuthenticationEx")):
        who = world.credentials(way, "carol")
        assert expected in tools.run("kafka-console-consumer", world.bootstrap(way), who, *ours)
    run_admin("kafka-configs", "--alter", "--delete-config", "SCRAM-SHA-256", *carol)
    listed = run_admin("kafka-configs", "--describe", *carol)
    assert "SCRAM-SHA-512" in listed
    assert "SCRAM-SHA-256" not in listed


def test_kafka_configs_sets_quotas_and_topics(
    world: ListenersWorld, run_admin: Callable[..., str], new_name: Callable[[str], str]
) -> None:
    dave = ("--entity-type", "users", "--entity-name", "dave")
    app = (*dave, "--entity-type", "clients", "--entity-name", "app")
    every = ("--entity-type", "users", "--entity-default")
    rates = "producer_byte_rate=1048576,consumer_byte_rate=2097152,request_percentage=50"
    run_admin("kafka-configs", "--alter", "--add-config", rates, *dave)
    run_admin("kafka-configs", "--alter", "--add-config", "producer_byte_rate=1000", *app)
    run_admin("kafka-configs", "--alter", "--add-config", "producer_byte_rate=1e9", *every)
    run_admin("kafka-configs", "--alter", "--delete-config", "consumer_byte_rate", *dave)
    listed = run_admin("kafka-configs", "--describe", "--entity-type", "users")
    assert "default user-principal are producer_byte_rate=1.0E9" in listed
    assert "'dave' are producer_byte_rate=1048576.0, request_percentage=50.0" in listed
    listed = run_admin("kafka-configs", "--describe", *app)
    assert "client-id 'app' are producer_byte_rate=1000.0" in listed
    topic = ("--entity-type", "topics", "--entity-name", world.create_topic(new_name("topic")))
    run_admin("kafka-configs", "--alter", "--add-config", "retention.ms=60000", *topic)
    assert "  retention.ms=60000 " in run_admin("kafka-configs", "--describe", *topic)
