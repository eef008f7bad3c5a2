"""The brokers of a run, and the network that they and their clients live in."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from faults.cluster import Cluster
from faults.namespaces import Namespaces
from faults.network import CLIENTS, Network, ProxyNetwork, SpaceNetwork, make_network
from faults.nodes import Node
from faults.proxy import Link
from faults.record import TOPIC, Load, Record
from faults.secured import WORKLOAD, Secured
from faults.storage.volumes import Volume
from moldau.model.layout import SECRET_FILE


class World(Record):
    """Brokers that are started, paused, and started again."""

    def __init__(
        self,
        home: Path,
        *,
        quick: bool = False,
        load: Load | None = None,
        seed: int = 1,
        secured: bool = False,
    ) -> None:
        super().__init__(home, quick=quick, load=load, seed=seed)
        self._is_secured = secured
        self.security: Secured | None = None
        """Of a secured run, from its first broker on."""
        self.nodes: list[Node] = []
        self.network = Network()
        self.cluster = Cluster(self.nodes, self.network, TOPIC)
        self._settings: dict[str, str] = {}
        self._stack = ExitStack()

    def use(self, volume: Volume) -> None:
        """Close the volume after the brokers that are started from now on."""
        self._stack.callback(volume.close)

    def start_brokers(
        self,
        count: int = 1,
        *,
        data_dirs: list[Path] | None = None,
        settings: dict[str, str] | None = None,
        network: str = "direct",
        others: tuple[str, ...] = (),
        module: str = "moldau",
        environments: dict[int, dict[str, str]] | None = None,
        start: bool = True,
    ) -> None:
        """Start brokers, or only set them up, behind a network: direct, proxies, or namespaces.

        The first bootstraps a cluster, the others join it. `environments` are those of `module`, by
        the number of the broker; without one a broker is a plain one.
        """
        self.network = make_network(network, count, others)
        self._stack.callback(self.network.close)
        if self._is_secured:
            self.security = Secured(self.home / "secured")
        self.cluster = Cluster(self.nodes, self.network, TOPIC, self.security)
        self._settings = {**(self.security.settings if self.security else {}), **(settings or {})}
        for index in range(count):
            environment = (environments or {}).get(index + 1)
            node = self.add_node(
                data_dir=data_dirs[index] if data_dirs else None,
                module=module if environment is not None else "moldau",
                environment=environment,
            )
            if start and index == 0:
                self.start(node)
        if start:
            self.start(*self.nodes[1:])

    def add_node(
        self,
        *,
        data_dir: Path | None = None,
        module: str = "moldau",
        environment: dict[str, str] | None = None,
    ) -> Node:
        """Set a further broker up, which joins through the first one unless it gets another."""
        number = len(self.nodes) + 1
        place = self.network.place(number)
        node = Node(
            number=number,
            data_dir=data_dir or self.home / f"data{number}",
            output=self.home / f"broker{number}.log",
            listen=place.kafka,
            advertised=place.kafka_advertised,
            raft=place.raft,
            raft_advertised=place.raft_advertised,
            http=place.http,
            join=self.nodes[0].http if self.nodes else "",
            settings=self._settings,
            prefix=list(place.prefix),
            module=module,
            environment=environment,
        )
        self._stack.callback(node.close)
        self.nodes.append(node)
        return node

    def launch(self, *nodes: Node) -> None:
        for node in nodes:
            if isinstance(self.network, SpaceNetwork) and node.join:
                self._give_secret(node)
            node.launch()
            self.network.pids[node.number] = node.pid

    def _give_secret(self, node: Node) -> None:
        """As an operator does who needs no token. Brokers on loopback find the file themselves."""
        target = node.data_dir / SECRET_FILE
        known = [other.data_dir / SECRET_FILE for other in self.nodes]
        source = next((path for path in known if path.exists()), None)
        if source is not None and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)

    def start(self, *nodes: Node) -> None:
        """Start some brokers together, and wait until they serve."""
        self.launch(*nodes)
        for node in nodes:
            node.await_ready()

    def client(self, where: str = CLIENTS, user: str = WORKLOAD) -> list[str]:
        """What to put before the command of a client: where it runs, and as whom if that counts."""
        login = self.security.as_user(user) if self.security else []
        return [*self.network.command(where), *login]

    @property
    def links(self) -> list[Link]:
        """From the clients to each broker, where there are proxies."""
        return list(self.network.clients.values()) if isinstance(self.network, ProxyNetwork) else []

    @property
    def peer_links(self) -> list[Link]:
        """Between brokers, where there are proxies."""
        return list(self.network.peers.values()) if isinstance(self.network, ProxyNetwork) else []

    @property
    def spaces(self) -> Namespaces | None:
        return self.network.spaces if isinstance(self.network, SpaceNetwork) else None

    @property
    def broker(self) -> Node:
        return self.nodes[0]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.advertised for node in self.nodes)

    def restart(self, node: Node) -> None:
        """Start a broker again, and keep how long that took for how much data."""
        size = node.data_bytes
        self.start(node)
        self.result.recoveries.append((size, node.start_seconds))

    @contextmanager
    def paused(self, node: Node) -> Iterator[None]:
        node.pause()
        try:
            yield
        finally:
            if node.alive():
                node.resume()
