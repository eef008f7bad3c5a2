"""A response of /metrics, read by the parser of Prometheus' own client."""

from http.client import HTTPConnection
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from moldau.testing.waiting import wait_seconds_max


class Scrape:
    """Values by name and labels."""

    def __init__(self, text: str) -> None:
        self.kinds: dict[str, str] = {}
        self.families: dict[str, str] = {}
        """Type by name, as the exposition says."""
        self.values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            assert family.documentation
            suffix = "_total" if family.type == "counter" else ""
            self.families[family.name + suffix] = family.type
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.values, f"{key} is told twice"
                self.values[key] = sample.value
                self.kinds[sample.name] = family.type

    def get(self, name: str, **labels: str) -> Any:
        """A number, or None if there is no such series."""
        return self.values.get((name, frozenset(labels.items())))

    def series(self, name: str, **labels: str) -> list[float]:
        """All with at least these labels."""
        wanted = labels.items()
        return [
            value
            for (found, having), value in self.values.items()
            if found == name and wanted <= dict(having).items()
        ]

    def total(self, name: str, **labels: str) -> float:
        return sum(self.series(name, **labels))


def scrape(address: str, *, detail: bool = False) -> Scrape:
    connection = HTTPConnection(address, timeout=wait_seconds_max())
    try:
        connection.request("GET", "/metrics" + ("?detail=partition" if detail else ""))
        response = connection.getresponse()
        assert response.status == 200
        assert response.getheader("content-type") == "text/plain; version=0.0.4; charset=utf-8"
        return Scrape(response.read().decode())
    finally:
        connection.close()
