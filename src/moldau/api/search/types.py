"""Types of searches, for protocol servers, which import nothing below the facade."""

from moldau.api.search.live import FOLLOWED_MAX, LiveBatch, LiveFeed, LiveWanted
from moldau.api.search.pages import Search, SearchFound
from moldau.data.search.filters import JsonTerm, SearchFilter
from moldau.data.search.types import ABORT, COMMIT, Hit, Start, Unreadable
