"""Tests that share what is slow to make run in one process of xdist, one group after the other."""

import re
import subprocess
import sys
from pathlib import Path

from tests.groups import LONG, TRANSFORMERS, group_of, rank_of
from tests.run import GROUPED

ROOT = Path(__file__).parents[1]
MODULE = "import pytest\n@pytest.mark.parametrize('n', range(8))\ndef test(n): pass\n"


def test_a_group_runs_in_one_process(tmp_path: Path) -> None:
    modules = ["tests/kernels/test_model_parity.py", "tests/parity/test_searches.py", "tests/a.py", "tests/b.py"]
    for module in modules:
        path = tmp_path / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MODULE)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "tests.conftest", "-n", "2"]
    result = subprocess.run([*command, *GROUPED, *modules], cwd=tmp_path, capture_output=True, text=True, check=False)
    processes: dict[str, set[str]] = {}
    for process, node in re.findall(r"^\[(gw\d)\].* PASSED (\S+)", result.stdout, re.MULTILINE):
        processes.setdefault(group_of(node), set()).add(process)
    counts = {group: len(found) for group, found in processes.items()}
    assert counts == {"transformers": 1, "tests/a.py": 1, "tests/b.py": 1}, result.stdout


def test_the_groups_name_what_is_there() -> None:
    assert all((ROOT / path).exists() for path in TRANSFORMERS)
    assert all((ROOT / group).exists() for group in LONG if group != "transformers")
    assert rank_of(f"{LONG[0]}::test") < rank_of("tests/test_groups.py::test")
