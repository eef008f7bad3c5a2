"""Helpers to generate the source of one function."""


class SourceWriter:
    """Collects indented lines, and the names that they use."""

    def __init__(self, version: int, *, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.depth = 2
        self.names: dict[str, object] = {}
        self._run: list[tuple[str, str]] = []
        """Fixed-size values that are read or packed by one call: target or source, and code."""
        self._count = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, prefix: str, value: object) -> str:
        name = self.fresh(prefix)
        self.names[name] = value
        return name
