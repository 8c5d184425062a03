"""Keeps an evaluation's results so far on disk, so that an interrupted evaluation can resume.

There is one file for each run, named after everything that determines its results (options, sizes and times of files,
the engine's own file). It is removed when the run is complete, so that no old result is ever read. Does not know what
the results mean.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernels import _native
from quant.files.cache_folder import cache_folder, file_state


class Journal:
    """A map from keys to results (both JSON), appended to a file as they come."""

    def __init__(self, run: object, folder: Path | None = None) -> None:
        """run: JSON of all that determines the results."""
        engine = file_state(Path(_native.__file__))
        name = hashlib.sha256(json.dumps([run, engine], sort_keys=True).encode()).hexdigest()[:32]
        self._path = (folder or cache_folder() / "eval") / f"{name}.jsonl"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._results: dict[str, Any] = {}
        if self._path.exists():
            self._read()

    def __len__(self) -> int:
        return len(self._results)

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """The recorded result of `key`, or else that of `compute`, which is recorded."""
        if key not in self._results:
            self._results[key] = result = compute()
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, result]) + "\n")
        return self._results[key]

    def forget(self, prefix: str) -> None:
        """Removes the results whose keys begin so."""
        self._results = {key: result for key, result in self._results.items() if not key.startswith(prefix)}
        lines = [json.dumps([key, result]) + "\n" for key, result in self._results.items()]
        partial = self._path.with_suffix(".partial")
        partial.write_text("".join(lines), encoding="utf-8")
        partial.replace(self._path)

    def complete(self) -> None:
        """Removes the results, because the run is complete."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> None:
        text = self._path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]  # the last line may have been cut off
        if len(whole) < len(text):
            self._path.write_text(whole, encoding="utf-8")
        for line in whole.splitlines():
            key, result = json.loads(line)
            self._results[key] = result
