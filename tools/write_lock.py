"""Writes requirements.lock, pip's constraint file, from its resolution reports: one exact version a line.

Run by `make lock`. Knows nothing of what the project needs; that is pyproject.toml.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

HEADER = """\
# Exact versions of all that serving, testing and linting install, transitive ones too: pip's constraints.
# Written by `make lock` (`make lock UPGRADE=1` looks for newer versions); do not edit by hand.
# Without the CUDA packages that some builds of torch need: such a build names their versions itself, others need none.
"""

_CUDA = re.compile(r"nvidia-.*|cuda-.*|triton")


def lock_lines(reports: list[dict[str, Any]], exclude: str) -> list[str]:
    """Sorted `name==version` lines; local versions such as 2.13.0+cpu lose their local part.

    A package whose version depends on Python gets a line with a marker for each Python. CUDA packages get no line: the
    lock must fit an index with CPU builds of torch as well as one with CUDA builds only, and be the same from both.

    Args:
        reports: the JSON of `pip install --report`, one per Python, as pip documents it.
        exclude: the project itself.
    """
    pythons: dict[str, dict[str, list[str]]] = {}
    for report in reports:
        for item in report["install"]:
            name = item["metadata"]["name"].lower().replace("_", "-").replace(".", "-")
            version = item["metadata"]["version"].partition("+")[0]
            pythons.setdefault(name, {}).setdefault(version, []).append(report["environment"]["python_version"])
    lines = []
    for name, versions in sorted(pythons.items()):
        if name == exclude or _CUDA.fullmatch(name):
            continue
        if len(versions) == 1:
            lines.append(f"{name}=={next(iter(versions))}")
        else:
            lines += [f'{name}=={v} ; python_version == "{p}"' for v, ps in versions.items() for p in ps]
    return lines


if __name__ == "__main__":
    lock_path, *report_paths = map(Path, sys.argv[1:])
    lines = lock_lines([json.loads(path.read_text()) for path in report_paths], exclude="redoubt")
    lock_path.write_text(HEADER + "\n".join(lines) + "\n")
