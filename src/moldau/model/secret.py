"""A secret text, such as a password, that does not show in logs, errors or reprs."""


class Secret:
    """Compares like its text; only `reveal` gives it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __str__(self) -> str:
        return "(hidden)"
