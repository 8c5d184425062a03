"""Real chat templates by conversations, beside transformers: a line a template. A part of `make conformance`.

    python -m tests.conformance.chat_templates [NAME...]

The templates are llama.cpp's collection. Knows nothing of what is compared (`tests/app/interface/text/conversations`).
"""

import sys
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.app.interface.text.conversations import CONVERSATIONS, outcome
from tests.conformance.llama_cpp import source_archive

_FOLDER = "/vendor/llama.cpp/models/templates/"


def main(names: Sequence[str]) -> int:
    """1 where a template renders less than transformers, or another text."""
    templates = fetched()
    total: Counter[str] = Counter()
    for name, source in templates.items():
        if names and name not in names:
            continue
        outcomes = {conversation: outcome(source, conversation) for conversation in CONVERSATIONS}
        kinds = {one: result.partition(":")[0] for one, result in outcomes.items()}
        total.update(kinds.values())
        counts = Counter(kinds.values())
        others = [f"{one}: {result}" for one, result in outcomes.items() if kinds[one] not in ("same", "written")]
        if len({one.partition(": ")[2] for one in others}) == 1 < len(others):
            others = [f"{len(others)} conversations: {others[0].partition(': ')[2]}"]
        print(f"{name}: {', '.join(f'{count} {kind}' for kind, count in counts.items())}", *others, sep="; ")
    print(f"{total.total()} conversations: {', '.join(f'{count} {kind}' for kind, count in total.items())}")
    return int("WRONG" in total or not total)


def fetched() -> dict[str, str]:
    """The templates by name."""
    with tarfile.open(source_archive()) as archive:
        members = [one for one in archive if _FOLDER in one.name and one.name.endswith(".jinja")]
        return {Path(one.name).stem: archive.extractfile(one).read().decode() for one in members}  # type: ignore[union-attr]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
