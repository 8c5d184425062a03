"""The lock file fits every index of packages, whichever builds of torch it has."""

from pathlib import Path
from typing import Any

from tools.write_lock import HEADER, lock_lines

LOCK = Path(__file__).parents[1] / "requirements.lock"


def report(python: str, **versions: str) -> dict[str, Any]:
    """What `pip install --report` says of these packages."""
    install = [{"metadata": {"name": name.replace("_", "-"), "version": v}} for name, v in versions.items()]
    return {"environment": {"python_version": python}, "install": install}


def test_cpu_and_cuda_builds_give_the_same_lines() -> None:
    cpu = report("3.11", torch="2.13.0+cpu", redoubt="0.1", networkx="3.6.1")
    cuda = report(
        "3.11", torch="2.13.0", redoubt="0.1", networkx="3.6.1", nvidia_cublas="13", triton="3", cuda_toolkit="1"
    )
    newer = report("3.12", torch="2.13.0", networkx="3.7")
    lines = ['networkx==3.6.1 ; python_version == "3.11"', 'networkx==3.7 ; python_version == "3.12"', "torch==2.13.0"]
    assert lock_lines([cpu, newer], "redoubt") == lock_lines([cuda, newer], "redoubt") == lines


def test_the_lock_file_has_no_cuda_packages() -> None:
    text = LOCK.read_text()
    assert text.startswith(HEADER)
    assert "torch==" in text
    names = [line.partition("==")[0] for line in text.splitlines() if "==" in line]
    assert [name for name in names if name.startswith(("nvidia-", "cuda-")) or name == "triton"] == []
