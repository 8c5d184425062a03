"""The cache folder: converted models and unfinished evaluations, which can be made again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """REDOUBT_CACHE, or `redoubt` in the user's cache folder."""
    named = os.environ.get("REDOUBT_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "redoubt"


def file_state(path: Path) -> list[list[object]]:
    """Names, sizes and modification times of a file, or of all files of a folder: a key that changes when they do."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]
