"""Which packages requirements need in turn, by what the installed ones say of themselves."""

from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.locks import environment


def needed(requirements: Iterable[str], python: int) -> set[str]:
    """The names of all that these need with CPython 3.`python` on x86-64 Linux, themselves too."""
    found: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({**environment(python), "extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for one in ("", *requirement.extras):
            if (name, one) in found:
                continue
            found.add((name, one))
            try:
                waiting += [(Requirement(text), one) for text in metadata.requires(name) or ()]
            except metadata.PackageNotFoundError:  # for newer Pythons than this one
                continue
    return {name for name, _ in found}
