"""The documentation agrees with the code, where a test can check it."""

import functools
import re
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml  # type: ignore[import-untyped]

from app.cli import cli
from app.launch.config_file import ServiceConfig
from app.settings.applications import ServiceSettings
from app.settings.knobs import validated
from bench.eval.comparison import read_comparison
from bench.eval.comparison_page import with_comparison
from bench.published.page import written
from bench.published.results import Results
from tests.conformance.table import with_table
from tests.pictures import MOST_BYTES
from tools.configuration_table import knob_tables, with_tables

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md")])
PAGE_TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
# Code blocks of a page: the language, and the text without the indentation of a list.
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
MOST_WORDS = {"README.md": 400, "benchmarks.md": 500}


def blocks(page: Path, *languages: str) -> list[str]:
    found = [(indent, text) for indent, language, text in BLOCK.findall(PAGE_TEXTS[page]) if language in languages]
    return [re.sub(f"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def in_code(page: Path) -> str:
    """Everything that is code: blocks and spans."""
    text = PAGE_TEXTS[page]
    spans = re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
    return "\n".join([*(block for _, _, block in BLOCK.findall(text)), *spans])


def test_every_knob_is_in_the_configuration_page() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == with_tables(page), "run `make docs`"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name.startswith("api")], ids=lambda page: page.name)
def test_a_page_of_the_api_is_one_dialect_and_short(page: Path) -> None:
    assert len(PAGE_TEXTS[page].splitlines()) <= 200


def test_the_clients_results_are_in_the_page_on_agents() -> None:
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    assert page == with_table(page), "run `make conformance`"


def test_the_tables_of_quality_are_those_of_their_files() -> None:
    page = text = (DOCS / "quality.md").read_text(encoding="utf-8")
    names = re.findall(r"<!-- (quality-\S+) begins -->", page)
    assert names
    for name in names:
        text = with_comparison(text, name, read_comparison(ROOT / "bench" / "results" / f"{name}.json"))
    assert page == text, "run `redoubt eval page` as docs/quality.md says"


def test_the_tables_beside_published_figures_are_those_of_their_files() -> None:
    page = (DOCS / "published.md").read_text(encoding="utf-8")
    assert page == written(page, Results(ROOT / "bench" / "results")), "run `redoubt bench published --page-only`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", PAGE_TEXTS[page]):
        if not target.startswith(("http://", "https://")):
            there = page.parent / target if target else page
            assert there.exists(), target
            assert not heading or heading in headings(there), f"{target}#{heading}"


def headings(page: Path) -> set[str]:
    """As links name them: lower case, without punctuation, with hyphens between words."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_pictures_are_small_and_shown() -> None:
    shown = {name for text in PAGE_TEXTS.values() for name in re.findall(r"images/([\w.-]+)\)", text)}
    files = {path.name: path.stat().st_size for path in (DOCS / "images").iterdir()}
    assert shown == set(files)
    assert all(size < MOST_BYTES for size in files.values())


def test_every_page_is_in_the_index() -> None:
    named = set(re.findall(r"\]\(([\w-]+\.md)", PAGE_TEXTS[DOCS / "README.md"]))
    assert named == {page.name for page in DOCS.glob("*.md")} - {"README.md"}


@pytest.mark.parametrize("name", MOST_WORDS)
def test_what_is_read_first_is_short(name: str) -> None:
    (page,) = (page for page in PAGES if page.name == name and (name != "README.md" or page.parent == ROOT))
    assert len(outside_tables(PAGE_TEXTS[page]).split()) <= MOST_WORDS[name]


def outside_tables(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("|"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_can_be_read(page: Path) -> None:
    """Shell commands, YAML, units and Python parse."""
    for block in blocks(page, "sh"):
        parsed = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
        assert parsed.returncode == 0, f"{parsed.stderr}\n{block}"
    for block in blocks(page, "yaml"):
        list(yaml.safe_load_all(block))
    for block in blocks(page, "ini"):
        unit = ConfigParser(strict=False)
        unit.read_string(block)
        assert {"Service", "Install"} <= set(unit) or {"Socket", "Install"} <= set(unit)
    for block in blocks(page, "python"):
        compile(block, str(page), "exec")


def test_a_whole_configuration_in_the_pages_is_one() -> None:
    whole = [block for page in PAGES for block in blocks(page, "yaml") if "applications:" in block]
    assert len(whole) >= 2
    for block in whole:
        validated(ServiceConfig, yaml.safe_load(block), "the page")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_their_options_exist(page: Path) -> None:
    root = typer.main.get_command(cli)
    for line in in_code(page).replace("-n redoubt", "").replace("\\|", "|").splitlines():  # kubectl's namespace; tables
        for words in re.findall(r"(?<![\w/.-])(?:[\w/.~]*/)?redoubt ((?:[a-z][\w-]*)(?: [^|>&#]*)?)", line):
            command, rest = command_of(root, words.split())
            assert command is not None, f"`redoubt {words}`"
            if command.name in ("bench", "eval", "verify", "proxy", "policy", "collateral"):
                continue  # their options are read by who does the work
            known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
            used = {word.split("=")[0] for word in rest if re.fullmatch(r"--[a-z][\w-]*(=.*)?", word)}
            assert used <= known, f"{used - known} of `redoubt {words}`"


def command_of(root: Any, words: list[str]) -> tuple[Any, list[str]]:
    """The command that these words name, as far as they do, and the rest. `a|b` names several: the first counts.

    None: there is no such command. Typer's classes of commands are its own affair, so they are not named here.
    """
    command = root
    while (commands := getattr(command, "commands", None)) and words and re.match(r"[a-z]", words[0]):
        command, words = commands.get(words[0].split("|")[0].rstrip("`,;:.)")), words[1:]
    return command, words


def test_the_start_lines_of_the_quick_start_are_the_programs() -> None:
    files = [ROOT / "app" / "launch" / f"{name}.py" for name in ("serving", "deployments", "supervisor")]
    said = "".join(file.read_text() for file in files)
    (shown,) = (block for block in blocks(DOCS / "quick-start.md", "") if "Redoubt is ready" in block)
    for line in shown.splitlines():
        sentence = line.removesuffix(" ...").replace("Model: smollm2-135m-instruct", "{', '.join(names)}")
        sentence = sentence.replace("smollm2-135m-instruct", "{name}").partition(": http")[0]
        sentence = re.sub(r"after \d+ s", "after {seconds} s", re.sub(r" \(\d+ MB\)", "{extent}", sentence))
        assert sentence in said, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_targets_of_make_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(" ".join(re.findall(r"^([a-z][\w -]*):(?!=)", makefile, flags=re.MULTILINE)).split())
    assert set(re.findall(r"(?<![\w-])make ([a-z][\w-]*)(?![\w+])", in_code(page))) <= targets


@functools.cache
def documented() -> str:
    return knob_tables()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_exist(page: Path) -> None:
    """Where a page names `section.setting`."""
    sections = {*ServiceSettings.model_fields, "http_options", "logging_config"}
    tables = documented()
    for section, name in re.findall(r"(?<![\w./-])([a-z_]+)\.([a-z_]+)\b(?![./(])", in_code(page)):
        if section in sections and name not in ("safetensors", "py", "yaml", "json"):
            table = tables.split(f"{section}`\n", 1)[1].split("\n### ", 1)[0]
            assert f"`{name}`" in table or f"`{name}." in table, f"{section}.{name}"


@pytest.mark.parametrize("package", ["app", "app/interface", "app/engine", "quant", "kernels"])
def test_the_tree_has_every_folder(package: str) -> None:
    """Of `app` and `app/interface` also every file."""
    tree = set(re.findall(r"\w+", "".join(blocks(ROOT / "CONTRIBUTING.md", ""))))
    modules = {
        path.stem for path in (ROOT / package).glob("*.py") if package.startswith("app") and "engine" not in package
    }
    folders = {path.parent.name for pattern in ("*.py", "*.h") for path in (ROOT / package).glob(f"*/{pattern}")}
    assert {name for name in modules | folders if not name.startswith("_")} <= tree


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_paths_exist(page: str) -> None:
    """Those in code, but for a recipe's NAME; a page may leave out the folders that its table is about."""
    folders = [".", "app", "app/interface", "app/interface/generate", "kernels"]
    paths = [each for each in re.findall(r"`([\w.-]+/[\w./-]*)`", PAGE_TEXTS[ROOT / page]) if "NAME" not in each]
    assert paths
    assert [path for path in paths if not exists(path, folders) and not exists(f"{path}.py", folders)] == []


FOLDERS = ("app", "quant", "kernels", "bench", "tests", "docs", "ray_configs")
FILE = re.compile(r"[\w./*-]+\.(?:h|cc|py|pyi|md|json|yaml)\b|[\w./-]+/(?![\w.*-])")


def exists(pattern: str, folders: list[str]) -> bool:
    return any(next((ROOT / folder).glob(pattern.rstrip("/")), None) for folder in folders)


def test_files_named_in_the_code_of_the_tuning_page_exist() -> None:
    text = PAGE_TEXTS[DOCS / "tuning.md"]
    named = [
        span for span in re.findall(r"`([^`\n]+)`", text) if span.startswith(tuple(f"{each}/" for each in FOLDERS))
    ]
    assert named
    assert [span for span in named if " " not in span and not exists(span, ["."])] == []


def tuning_rows() -> list[tuple[str, list[str], list[Path]]]:
    """What a row of the tuning page is about, the names in it that code may define, and the files that it names."""
    rows = []
    folders: list[str] = []
    for line in (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            folders = [".", "kernels", "app", "quant", *re.findall(r"`([^`]+)/`", line)]
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 7 and cells[1] not in ("constant", "---"):
            patterns = FILE.findall(cells[2])
            assert patterns, f"{cells[1]}: no file in {cells[2]!r}"
            missing = [pattern for pattern in patterns if not exists(pattern, folders)]
            assert not missing, f"{missing} of {cells[1]} are in none of {folders}"
            found = [path for each in patterns for folder in folders for path in (ROOT / folder).glob(each.rstrip("/"))]
            rows.append((cells[1], re.findall(r"`(\w+)`", cells[1]), found))
    return rows


def test_the_tuning_page_names_files_that_have_its_constants() -> None:
    rows = tuning_rows()
    assert len(rows) > 60
    for row, names, files in rows:
        # A folder stands for the sources in it.
        sources = [each for path in files for each in (path.rglob("*.*") if path.is_dir() else [path])]
        texts = [each.read_text(encoding="utf-8") for each in sources if each.suffix in (".py", ".h", ".cc", ".yaml")]
        lacking = [name for name in names if not any(re.search(rf"\b{name}", text) for text in texts)]
        assert not lacking, f"{lacking} of {row} are not in {files}"
