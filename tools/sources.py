"""What our packages are built from, whichever way. Knows nothing of building."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "app/interface/web/dist"


def git(*arguments: str) -> str:
    """What git prints for this tree."""
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def copy_sources(folder: Path) -> None:
    """The files that git tracks, as they are now, and the pages that `make page` has built."""
    built = sorted(str(path.relative_to(ROOT)) for path in PAGES.rglob("[!.]*"))
    for name in [*git("ls-files", "-z").split("\0"), *built]:
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
