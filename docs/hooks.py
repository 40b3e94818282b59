"""What MkDocs does so that a page reads on the site as it does on GitHub.

Pages link to files of the repository as they would on GitHub: `../REPRODUCTION.md`, `../examples/own_data.py`. On the
site the file PATH of the repository is the page `repository/PATH`: Markdown as it is, pictures as they are, and all
other files as a page that shows their text. Only files that a page links to, or that the navigation names, are there.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markdown import Extension, Markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from fcil.experiment.config import setting_rows
from fcil.reporting.tables import settings_page

ROOT = Path(__file__).resolve().parents[1]
DOCS, REPOSITORY = "docs/", "repository/"
SETTINGS = "settings.md"  # in the repository it says how to print the table
PICTURES = (".png", ".svg")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".cff": "yaml"}
LINK = re.compile(r"\[([^][]*)\]\((?![a-z]+:|#|/)([^)\s#]+)")  # a link's text and target, without the anchor
ITEM = re.compile(r" *(?:[-*]|\d+\.) ")
FENCE = re.compile(r" *```")


class GitHubLists(Extension):
    """Lists within lists are indented by two spaces, as GitHub reads them, and not by four."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Build the parser anew: its parts take the number over when they are made."""
        md.tab_length = 2
        md.build_parser()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add what reads lists as GitHub does."""
    config.markdown_extensions.insert(0, GitHubLists())  # type: ignore[arg-type] # before what adds to the parser
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that pages link to, those that these link to, and so on."""
    waiting = [f"{DOCS}{file.src_uri}" for file in files.documentation_pages()]
    waiting += [uri.removeprefix(REPOSITORY) for _, uri in named(config.nav) if uri.startswith(REPOSITORY)]
    seen = set[str]()
    while waiting:
        path = waiting.pop()
        if path in seen or not (ROOT / path).is_file():
            continue  # MkDocs says which link leads nowhere
        seen.add(path)
        if not path.startswith(DOCS):
            files.append(page_of(path, config))
        if path.endswith(".md"):
            waiting += links((ROOT / path).read_text("utf-8"), path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page with links that hold on the site, and with lists and tables that MkDocs recognises."""
    here = page.file.src_uri
    if here == SETTINGS:
        markdown = settings_page(setting_rows())
    path = here.removeprefix(REPOSITORY) if here.startswith(REPOSITORY) else f"{DOCS}{here}"

    titles = {uri: title for title, uri in named(config.nav)}

    def on_site(match: re.Match[str]) -> str:
        text, target = match.groups()
        uri = uri_of(resolved(target, path))
        if text == posixpath.basename(target):
            text = titles.get(uri) or text  # a reader of the site sees a title in place of a file's name
        return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(here) or '.')}"

    linked = "".join(line if code else LINK.sub(on_site, line) for line, code in lines_of(markdown))
    return "".join(spaced(linked))


def named(nav: Any, title: str = "") -> Iterator[tuple[str, str]]:
    """Yield the title and the file of each page in the navigation."""
    if isinstance(nav, str):
        yield title, nav
    elif isinstance(nav, dict):
        for name, part in nav.items():
            yield from named(part, name)
    else:
        for part in nav:
            yield from named(part)


def page_of(path: str, config: MkDocsConfig) -> File:
    """Return a file of the repository as a file of the site, whether or not the navigation names it."""
    if path.endswith((".md", *PICTURES)):
        place = str(ROOT / path)
        return File.generated(config, uri_of(path), abs_src_path=place, inclusion=InclusionLevel.NOT_IN_NAV)
    language = LANGUAGES.get(Path(path).suffix, "text")
    front = "---\nsearch: { exclude: true }\n---\n"
    listing = f"{front}# {path}\n\n```{language}\n{(ROOT / path).read_text('utf-8')}```\n"
    return File.generated(config, uri_of(path), content=listing, inclusion=InclusionLevel.NOT_IN_NAV)


def uri_of(path: str) -> str:
    """Return where the site has a file of the repository."""
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    return REPOSITORY + path + ("" if path.endswith((".md", *PICTURES)) else ".md")


def links(text: str, path: str) -> Iterator[str]:
    """Yield the files that a page links to, from the repository's root."""
    for line, code in lines_of(text):
        yield from () if code else (resolved(target, path) for _, target in LINK.findall(line))


def resolved(link: str, path: str) -> str:
    """Return the file that a link of another file means, from the repository's root."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def lines_of(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line, and whether it is code."""
    code = False
    for line in text.splitlines(keepends=True):
        fence = FENCE.match(line) is not None
        yield line, code or fence
        code ^= fence


def spaced(text: str) -> Iterator[str]:
    """Yield the lines with an empty one before each list or table that follows a paragraph."""
    before = ""
    for line, code in lines_of(text):
        begins = (ITEM.match(line) and not ITEM.match(before)) or (line[0] == "|" and before[:1] != "|")
        if begins and not code and before.strip() and before[0] not in " #":
            yield "\n"
        yield line
        before = line
