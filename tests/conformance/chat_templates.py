"""Real chat templates by conversations, beside transformers: a line a template. A part of `make conformance`.

    python -m tests.conformance.chat_templates [NAME...]

The templates are llama.cpp's collection, of llama-cpp-python's source, which pip fetches into build/conformance. Knows
nothing of what is compared (`tests/app/interface/text/conversations`).
"""

import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.app.interface.text.conversations import CONVERSATIONS, outcome
from tests.service.running import ROOT

_REQUIREMENTS = Path(__file__).parent / "requirements" / "chat_templates.txt"
_FOLDER = "/vendor/llama.cpp/models/templates/"


def main(names: Sequence[str]) -> int:
    """1 where a template renders less than transformers, or another text."""
    templates = fetched(ROOT / "build" / "conformance" / "chat_templates")
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


def fetched(folder: Path) -> dict[str, str]:
    """The templates by name; fetched if they are not there."""
    if not list(folder.glob("*.tar.gz")):
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        pip += ["--no-build-isolation", "--no-binary", ":all:", "--require-hashes", "--dest", str(folder)]
        subprocess.run([*pip, "--requirement", str(_REQUIREMENTS)], check=True)
    (path,) = folder.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        members = [one for one in archive if _FOLDER in one.name and one.name.endswith(".jinja")]
        return {Path(one.name).stem: archive.extractfile(one).read().decode() for one in members}  # type: ignore[union-attr]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
