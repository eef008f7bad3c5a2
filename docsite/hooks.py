"""What mkdocs calls while it builds: the order of the pages, and files outside docs/.

Pages link to files of the repository by relative paths, so that they work in a checkout and on the
forge. On the site these files are pages of their own, below repository/.
"""

import posixpath
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# mkdocs loads this file by its path.
sys.path.insert(0, str(ROOT))

from docsite import pages  # noqa: E402

REPOSITORY = pages.Repository(ROOT)
written: dict[str, str] = {}
"""The text of each page as it is on the site: for llms.txt, which links to it."""


def on_config(config: "MkDocsConfig") -> None:
    def title_of(page: str) -> str:
        return pages.title(REPOSITORY.text(f"{pages.DOCS}/{page}"))

    config.nav = pages.expanded(config.nav or [], REPOSITORY.pages(), title_of)


def on_files(files: "Files", config: "MkDocsConfig") -> None:
    from mkdocs.structure.files import File, InclusionLevel

    for path, uri in REPOSITORY.outside.items():
        source = ROOT / path
        if path.endswith(pages.PICTURES):
            file = File.generated(config, uri, abs_src_path=str(source))
        else:
            file = File.generated(config, uri, content=REPOSITORY.page_of(path))
        file.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(file)


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """With the links of a checkout turned into those of the site."""
    here = page.file.src_uri
    origin = {uri: path for path, uri in REPOSITORY.outside.items()}.get(
        here, f"{pages.DOCS}/{here}"
    )
    written[here] = markdown
    if not origin.endswith(".md"):
        return markdown

    def replaced(target: str) -> str:
        link = pages.resolve(origin, target)
        if link is None or target.startswith("#"):
            return target
        path = posixpath.relpath(REPOSITORY.on_site(link), posixpath.dirname(here) or ".")
        return f"{path}#{link.anchor}" if link.anchor else path

    written[here] = pages.replace_links(markdown, replaced)
    return written[here]


def on_post_build(config: "MkDocsConfig") -> None:
    """Every page as Markdown, too, beside the HTML."""
    for uri, text in written.items():
        Path(config.site_dir, uri).write_text(text)
