"""Reads JSON objects with their size and type checked; writes them indented and syncs them to the disk."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from quant.errors import SourceError
from quant.files.plain_file import read_plain_text

_MAX_JSON_BYTES: Final = 64 << 20


def read_json(path: Path) -> Any:
    """Reads a JSON file of at most 64 MiB. Raises SourceError naming the file."""
    try:
        text = read_plain_text(path, _MAX_JSON_BYTES)
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # refuses lone surrogates, which no file of ours can hold
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: is not JSON: {error}") from error
    return value


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object of at most 64 MiB. Raises SourceError naming the file."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise SourceError(f"{path}: is not a JSON object")
    return value


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Writes a JSON object, indented, and syncs it to the disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
