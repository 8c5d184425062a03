"""Where the processes of one Ray on one machine meet."""

from pathlib import Path
from typing import Any

import ray

LINES = "lines"
"""The folder of `app.direct_line`'s sockets, whose names are the ingresses'; short, as their paths must be."""


def session_folder(name: str) -> Path:
    """A folder of that name, not made yet; another Ray on the same machine has its own."""
    node: Any = ray._private.worker._global_node  # Ray has no public way to its session's folder (2.60)
    return Path(node.get_session_dir_path()) / name
