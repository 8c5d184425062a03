"""The documentation agrees with the code, where a test can check it."""

import re
from pathlib import Path

import pytest

from tests.conformance.table import with_table
from tools.configuration_table import with_tables

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def test_every_knob_is_in_the_configuration_page() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == with_tables(page), "run `make docs`"


def test_the_clients_results_are_in_the_api_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert page == with_table(page), "run `make conformance`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("package", ["app", "app/interface", "app/engine", "quant", "kernels"])
def test_the_tree_of_the_architecture_page_has_every_module(package: str) -> None:
    """Of these packages the page names every file and folder."""
    tree = set(re.findall(r"\w+", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("```")[1]))
    modules = {path.stem for path in (ROOT / package).glob("*.py")}
    folders = {path.parent.name for pattern in ("*.py", "*.h") for path in (ROOT / package).glob(f"*/{pattern}")}
    assert {name for name in modules | folders if not name.startswith("_")} <= tree


FOLDERS = ("app", "quant", "kernels", "bench", "tests", "docs", "ray_configs")
FILE = re.compile(r"[\w./*-]+\.(?:h|cc|py|pyi|md|json|yaml)\b|[\w./-]+/(?![\w.*-])")


def exists(pattern: str, folders: list[str]) -> bool:
    return any(next((ROOT / folder).glob(pattern.rstrip("/")), None) for folder in folders)


@pytest.mark.parametrize("page", ["tuning.md", "architecture.md"])
def test_files_named_in_code_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
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
        texts = [path.read_text(encoding="utf-8") for path in files if path.is_file()]
        lacking = [name for name in names if not any(re.search(rf"\b{name}", text) for text in texts)]
        # A folder stands for all that is in it.
        assert not lacking or len(texts) < len(files), f"{lacking} of {row} are not in {files}"
