"""Which models `redoubt serve` serves: what its command line and its file name is made ready before anything starts."""

import os
from collections.abc import Sequence
from pathlib import Path

from app.launch.config_file import check_before_fetching, draft_names, model_names
from app.launch.preflight import check_processor
from app.models.names import catalogue_draft
from app.models.store import StoreError, converted_model

_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def model_folders(names: Sequence[str], config: Path) -> list[Path]:
    """The folders of the models that a command line names; of none the file's are made ready.

    Afterwards no process of the service has a hub's token in its environment. Raises as `ready` does, and SettingsError
    for a machine that can't serve and for a wrong file, before a model is fetched.
    """
    check_processor()
    check_before_fetching(config, names)
    folders = [ready(name) for name in names or model_names(config)]
    if not names:
        for name in draft_names(config):
            ready(name)
    for variable in _TOKENS:
        os.environ.pop(variable, None)
    return folders if names else []


def draft_folder(draft: str, names: Sequence[str], config: Path) -> Path:
    """The folder of the draft model that a command line names, for the one model that it or the file names.

    Raises as `ready` does, and StoreError for "auto" and "eagle" where the catalogue has none for the model.
    """
    if draft not in ("auto", "eagle"):
        return ready(draft)
    served = [*names] or model_names(config)
    found = catalogue_draft(served[0], head=draft == "eagle") if len(served) == 1 else None
    if found is None:
        model = served[0] if len(served) == 1 else "one model"
        what = "EAGLE-3 head" if draft == "eagle" else "draft model"
        raise StoreError(f"--draft {draft}: the catalogue has no {what} for {model}: name one, as --draft qwen3-0.6b")
    return ready(found)


def names_to_improve(names: Sequence[str], config: Path) -> list[str]:
    """The names of models whose source is known, of those that a command line names, or of none the file.

    Raises StoreError for another one, and if there is none at all.
    """
    from app.commands.improving import improvable

    found = list(names or model_names(config))
    for name in found:
        improvable(name)
    if not found:
        raise StoreError(f"--improve: {config} names no model of the store (`model.name`)")
    return found


def ready(name: str, *, is_served: bool = True) -> Path:
    """The folder of a converted model that a name means; fetched and converted if it is not there.

    Raises QuantError, ChatModelError, OSError, KeyboardInterrupt with what is left to do.
    """
    if (found := converted_model(name)) is not None:
        return found
    from app.commands.pulling import Conversion, converted_into_store  # the calculator and the converter

    return converted_into_store(name, Conversion(), is_served=is_served)
