"""Edits of rendered documents, for tests that break one thing at a time."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from tests.cloud.manifests.kubectl import Document

Edit = Callable[[Document], object]

DELETE = object()


def at(path: str, value: Any) -> Edit:
    """Sets what lies at a path of names, indexes and, last, `-` for a further item; DELETE removes it."""
    *way, last = path.split(".")

    def edit(document: Document) -> None:
        here: Any = document
        for step in way:
            here = here[int(step)] if isinstance(here, list) else here.setdefault(step, {})
        if value is DELETE:
            del here[int(last) if isinstance(here, list) else last]
        elif last == "-":
            here.append(deepcopy(value))
        else:
            here[int(last) if isinstance(here, list) else last] = deepcopy(value)

    return edit


def edited(document: Document, *edits: Edit) -> Document:
    """A copy with these edits."""
    copy = deepcopy(document)
    for edit in edits:
        edit(copy)
    return copy


CLUSTER = "spec.rayClusterConfig"
HEAD = f"{CLUSTER}.headGroupSpec"
WORKERS = f"{CLUSTER}.workerGroupSpecs.0"
HEAD_POD = f"{HEAD}.template.spec"
WORKER_POD = f"{WORKERS}.template.spec"
