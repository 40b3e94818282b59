"""The pages as they are read in the repository: links, commands, settings and code that they name exist."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.command import COMMAND, parse

from fcil.experiment.config import load_config, setting_rows

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
FOLDERS = (".", "deploy", "examples", "examples/plugin")
PAGES = sorted({*DOCS.rglob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).glob("*.md"))})
PAGES += [*sorted(ROOT.glob("results/*/README.md")), ROOT / "results" / "NOTES.md"]
LINK = re.compile(r"\]\((?![a-z]+:)([^)\s#]*)(?:#([^)\s]*))?\)")
LATER = ("afl-", "lander-", "lorm-", "mfcl-", "resource-", "stsa-")  # protocols in which each image has one owner
MOST_WORDS = 30_000  # of all pages in docs/
SCREEN = 60  # lines
TABLES = "data|scenario|model|train|federation|privacy|run|deployment|method"

if not DOCS.is_dir():
    pytest.skip("the pages come with the source, not with the wheel", allow_module_level=True)


@cache
def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings as GitHub makes them."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug if number == 0 else f"{slug}-{number}" for slug, last in found.items() for number in range(last + 1)}


def commands(page: Path) -> list[str]:
    """Return the command lines in a page's blocks of code."""
    blocks = re.findall(r"^```(?:console)?\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line.split("#")[0] for block in blocks for line in block.splitlines()]
    return [command.strip() for line in lines for command in line.split(";") if command.strip().startswith("fcil ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for target, anchor in LINK.findall(prose(page)):
        place = (page.parent / target).resolve() if target else page
        assert place.is_file(), f"{target} does not exist"
        assert place.is_relative_to(ROOT), f"{target} is not in the repository"
        assert not anchor or anchor in anchors(place), f"{target} has no heading for #{anchor}"


def test_the_readme_is_short_and_shows_a_picture_after_the_first_paragraph() -> None:
    text = README.read_text("utf-8")
    assert len(text.splitlines()) <= 100
    assert text.count("](") <= 20
    _title, paragraph, picture, *_ = text.split("\n\n")
    assert len(paragraph.splitlines()) <= 4
    assert "docs/report.png" in picture
    table = text.partition("<!-- results: begin -->\n")[2].partition("<!-- results: end -->")[0]
    assert len(table.splitlines()) == 2 + 5


def test_the_readme_says_how_images_are_split() -> None:
    assert 'scenario.split = "shared"' in README.read_text("utf-8")
    for preset in (ROOT / "fcil" / "experiment" / "presets").glob("*.toml"):
        has_one_owner = preset.stem.endswith("-noniid") or preset.stem.startswith(LATER)
        assert load_config(preset.stem).scenario.is_shared != has_one_owner


def test_pages_stay_short() -> None:
    words = {page: len(page.read_text("utf-8").split()) for page in DOCS.rglob("*.md")}
    assert words[DOCS / "architecture.md"] <= 1800
    assert words[DOCS / "decisions.md"] <= 1500
    assert sum(words.values()) <= MOST_WORDS


def test_each_door_has_a_page_of_a_screen_with_the_code_of_the_example_package() -> None:
    plugin = ROOT / "examples" / "plugin" / "fcil_example"
    whole = {module.read_text("utf-8") for module in plugin.glob("*.py")}
    pages = [*(DOCS / "extend").glob("*.md")]
    assert len(pages) == 6
    for page in pages:
        text = page.read_text("utf-8")
        assert len(text.splitlines()) <= SCREEN, page
        assert text.partition("```python\n")[2].partition("```")[0] in whole, page


def test_the_first_page_names_every_page_for_users() -> None:
    linked = {target for target, _ in LINK.findall(prose(DOCS / "index.md"))}
    pages = {page.relative_to(DOCS).as_posix() for page in (*DOCS.glob("*.md"), *DOCS.glob("extend/*.md"))}
    assert pages - {"index.md"} <= linked


def test_the_glossary_has_a_line_for_each_of_the_terms_that_matter() -> None:
    terms = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", (DOCS / "glossary.md").read_text("utf-8"), re.MULTILINE)[1:]
    assert len(terms) == 30
    assert terms == sorted(terms, key=str.lower)
    assert "S_o, S_b, S_n" in terms


@pytest.mark.parametrize("term", ["non-iid", "Dirichlet", "pre-trained", "differential privacy"])
def test_terms_that_people_search_for_are_found(term: str) -> None:
    assert any(term in page.read_text("utf-8") for page in DOCS.rglob("*.md"))


def test_every_command_is_on_the_page_of_commands() -> None:
    shown = {line.split()[1] for line in commands(DOCS / "commands.md")}
    known = getattr(COMMAND, "commands")  # noqa: B009 (only groups have them)
    assert shown == {name for name, command in known.items() if not command.hidden}


@pytest.mark.parametrize("line", sorted({*commands(README), *commands(DOCS / "commands.md")}))
def test_a_command_line_has_a_command_and_options_that_exist(line: str) -> None:
    parse(line)


def test_settings_that_pages_name_exist() -> None:
    known = {key for key, _, _ in setting_rows()}
    for page in DOCS.glob("*.md"):
        named = set(re.findall(rf"`((?:{TABLES})\.[a-z_.]+)(?: ?=[^`]*)?`", prose(page)))
        others = {key for key in named if any(other.startswith(f"{key}.") for other in known)} | {"model.safetensors"}
        assert named - others <= known, page.name


# --- docs/hooks.py, which makes a site of the pages ----------------------------------------------------------------


@pytest.fixture(scope="module")
def hooks() -> Any:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("docs/reference/python.md", "reference/python.md"),
        ("docs/report.png", "report.png"),
        ("REPRODUCTION.md", "repository/REPRODUCTION.md"),
        ("results/digits/curves.svg", "repository/results/digits/curves.svg"),
        ("examples/own_data.py", "repository/examples/own_data.py.md"),
    ],
)
def test_every_file_of_the_repository_has_one_place_on_the_site(hooks: Any, path: str, uri: str) -> None:
    assert hooks.uri_of(path) == uri


def test_links_are_found_outside_of_code_alone(hooks: Any) -> None:
    page = (
        "[a](../README.md#x) ![b](report.png) [c](https://example.org) [d](#here)\n```\n[e](no.md)\n```\n[f](use.md)\n"
    )
    assert list(hooks.links(page, "docs/index.md")) == ["README.md", "docs/report.png", "docs/use.md"]


def test_lists_and_tables_after_a_paragraph_get_the_empty_line_that_mkdocs_needs(hooks: Any) -> None:
    page = "text:\n- one\n  goes on\n- two\n\ntext\n| a |\n|---|\n```\nb\n- c\n```\n"
    spaced = "".join(hooks.spaced(page))
    assert spaced == "text:\n\n- one\n  goes on\n- two\n\ntext\n\n| a |\n|---|\n```\nb\n- c\n```\n"


def test_a_list_within_a_list_is_indented_by_two_spaces(hooks: Any) -> None:
    markdown = pytest.importorskip("markdown")
    page = markdown.markdown("- one\n  - below\n    goes on\n- two\n", extensions=[hooks.GitHubLists()])
    assert re.sub(r"\s+", "", page) == "<ul><li>one<ul><li>belowgoeson</li></ul></li><li>two</li></ul>"
