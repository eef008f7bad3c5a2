"""A search and a live view as clients ask for them, with nothing special."""

from moldau.api.search.types import LiveWanted, Search, SearchFilter, Start

SEARCH = Search(
    newest=True,
    start=Start(),
    wanted=SearchFilter(),
    partitions=None,
    limit=1,
    value_max=1,
    cursor=None,
)
LIVE = LiveWanted(wanted=SearchFilter(), partitions=None, value_max=1)


async def stays() -> bool:
    """Whether the client disconnected."""
    return False
