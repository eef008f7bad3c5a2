"""GET /ui/: the files of the web console, which `make console` builds into this package.

They hold no data, so everyone may have them. What the console shows it asks of /api/v1, with the
rights of its user.
"""

import asyncio
import gzip
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from moldau.edge.http.responses import HEADERS, respond_error
from moldau.model.errors import ErrorCode

FOLDER: Final = Path(__file__).parent / "console" / "dist"
PREFIX: Final = "/ui/"
_INDEX: Final = "index.html"
_ASSETS: Final = "assets/"
_HASHED: Final = re.compile(r"assets/.+-[A-Za-z0-9_-]{8}\.\w+")
"""Named by their content: a file of this name never changes."""
_GZIP_BYTES_MIN: Final = 512
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""The console runs its own scripts, and talks to the broker that served it: nothing else."""
_HEADERS: Final = {**HEADERS, "content-security-policy": _POLICY, "vary": "accept-encoding"}
_TEXT_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
_MEDIA_TYPES: Final = {
    **_TEXT_TYPES,
    ".ico": "image/x-icon",
    ".png": "image/png",
    ".woff2": "font/woff2",
}


class ConsoleFile(Struct, frozen=True, kw_only=True):
    """One file, in memory."""

    body: bytes
    etag: str
    media_type: str
    cache_control: str
    compressed: bytes | None
    """By gzip; None if that saves nothing."""

    def reply(self, request: Request) -> Response:
        accepts = accepts_gzip(request.headers.get("accept-encoding", ""))
        body, etag, headers = self.body, f'"{self.etag}"', dict(_HEADERS)
        if self.compressed is not None and accepts:
            body, etag = self.compressed, f'"{self.etag}-gzip"'
            headers["content-encoding"] = "gzip"
        headers |= {"etag": etag, "cache-control": self.cache_control}
        if _has(request.headers.get("if-none-match", ""), etag):
            headers.pop("content-encoding", None)
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=self.media_type)


class ConsoleFiles:
    """Read on the first request: most brokers never get one."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._files: Mapping[str, ConsoleFile] | None = None
        self._reading = asyncio.Lock()

    async def reply(self, path: str, request: Request) -> Response:
        """`path` is what follows /ui/, as the client wrote it: only a key, never a file name."""
        files = await self._read()
        if _INDEX not in files:
            return respond_error(
                404,
                ErrorCode.RESOURCE_NOT_FOUND,
                "This broker was installed without the web console",
                hint="build it by: make console; the same data is at /api/v1",
            )
        found = files.get(path) or (files[_INDEX] if _is_page(path) else None)
        if found is None:
            return respond_error(
                404,
                ErrorCode.RESOURCE_NOT_FOUND,
                f"The web console has no file {path}",
                hint="load the page again: the broker may have another version by now",
            )
        return found.reply(request)

    async def _read(self) -> Mapping[str, ConsoleFile]:
        if self._files is not None:
            return self._files
        async with self._reading:
            if self._files is None:
                found = await asyncio.to_thread(read_files, self._folder)
                if _INDEX not in found:
                    # It may be built while this broker runs.
                    return found
                self._files = found
            return self._files


def read_files(folder: Path) -> dict[str, ConsoleFile]:
    """By their paths in the folder; empty if there is none."""
    return {
        path.relative_to(folder).as_posix(): _read_file(path, path.relative_to(folder).as_posix())
        for path in sorted(folder.rglob("*"))
        if path.suffix in _MEDIA_TYPES and path.is_file()
    }


def _read_file(path: Path, name: str) -> ConsoleFile:
    body = path.read_bytes()
    compressed = None
    if path.suffix in _TEXT_TYPES and len(body) >= _GZIP_BYTES_MIN:
        compressed = gzip.compress(body, mtime=0)
    is_fixed = _HASHED.fullmatch(name) is not None
    return ConsoleFile(
        body=body,
        etag=hashlib.sha256(body).hexdigest()[:32],
        media_type=_MEDIA_TYPES[path.suffix],
        cache_control="public, max-age=31536000, immutable" if is_fixed else "no-cache",
        compressed=compressed if compressed is not None and len(compressed) < len(body) else None,
    )


def accepts_gzip(header: str) -> bool:
    """Whether Accept-Encoding names gzip, with any weight but 0."""
    for part in header.lower().split(","):
        coding, _, parameter = part.partition(";")
        if coding.strip() in ("gzip", "*"):
            weight = parameter.strip().removeprefix("q=")
            return not weight or weight.strip("0.") != ""
    return False


def _has(header: str, etag: str) -> bool:
    """Whether If-None-Match names this version."""
    return any(part.strip().removeprefix("W/") in (etag, "*") for part in header.split(","))


def _is_page(path: str) -> bool:
    """Whether it is an address inside the console. The names of topics and groups in it may have
    dots, which look like the extension of a file."""
    if path.startswith(_ASSETS):
        return False
    first, slash, _ = path.partition("/")
    return bool(slash) or "." not in first


def is_for_everyone(scope: Scope) -> bool:
    """Whether the request is for the console, or for the way to it."""
    if scope["method"] not in ("GET", "HEAD"):
        return False
    path: str = scope["path"]
    return path.startswith(PREFIX) or path == "/ui" or wants_page(scope)


def wants_page(scope: Scope) -> bool:
    """Whether a browser shows the root: programs that do not name HTML get JSON."""
    return scope["path"] == "/" and accepts_page(scope)


def accepts_page(scope: Scope) -> bool:
    return any(
        name == b"accept" and b"text/html" in value.lower() for name, value in scope["headers"]
    )


def lead_to_console() -> Response:
    return Response(status_code=303, headers={**HEADERS, "location": PREFIX})


def routes(folder: Path = FOLDER) -> list[Route]:
    files = ConsoleFiles(folder)

    async def console(request: Request) -> Response:
        return await files.reply(request.path_params["path"], request)

    async def lead(request: Request) -> Response:
        return lead_to_console()

    return [
        Route("/ui", lead, methods=["GET"]),
        Route("/ui/{path:path}", console, methods=["GET"]),
    ]
