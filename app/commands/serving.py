"""Which models `redoubt serve` serves: what its command line and its file name is made ready before anything starts."""

import os
from collections.abc import Sequence
from pathlib import Path

from app.launch.config_file import model_names

_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def model_folders(names: Sequence[str], config: Path) -> list[Path]:
    """The folders of the models that a command line names; of none the file's are made ready.

    Afterwards no process of the service has a hub's token in its environment. Raises as `ready` does.
    """
    folders = list[Path]()
    if wanted := names or model_names(config):
        from app.commands.pulling import ready  # it needs the calculator and the converter

        folders = [ready(name) for name in wanted]
    for variable in _TOKENS:
        os.environ.pop(variable, None)
    return folders if names else []
