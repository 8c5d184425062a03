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
