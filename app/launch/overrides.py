"""What the command line says instead of the configuration file. Knows the file's form, and reads none."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.settings.applications import ModelApplicationSettings
from app.settings.knobs import SettingsError

MODEL_IMPORT_PATH = "app.deploy:build_model"
"""The application of a further model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Values from the command line; None: the file's."""

    host: str | None = None
    port: int | None = None
    model_folders: Sequence[Path] = ()
    """Replace all models of the file. The first takes the place of the file's first model; each further one becomes an
    application of its own with the same settings."""
    chat_template: Path | None = None
    """Of the model, which must be the only one."""
    draft: Path | None = None
    """The folder of the draft model of the model, which must be the only one."""
    evidence: str | None = None
    """How clients verify this machine (`attestation.evidence`)."""
    log_folder: Path | None = None
    """Of the access log."""
    sleep_after_s: float | None = None
    """Of every model."""

    def apply(self, values: dict[str, Any]) -> None:
        """Changes the values of a configuration. Raises SettingsError."""
        listens = {"host": self.host, "port": self.port}
        if given := {name: value for name, value in listens.items() if value is not None}:
            values["http_options"] = values.get("http_options", {}) | given
        (front,) = (one for one in values["applications"] if one["import_path"] != MODEL_IMPORT_PATH)
        if self.model_folders:
            self._replace_models(values, front)
        for name, path in (("chat_template", self.chat_template), ("draft", self.draft)):
            if path is None:
                continue
            if len(values["applications"]) > 1:
                option = name.replace("_", "-")
                raise SettingsError(f"--{option} is for one model: of several, each has model.{name} in the file")
            front["args"]["model"] = {**front["args"]["model"], name: str(path.absolute())}
        if self.evidence is not None:
            front["args"].setdefault("attestation", {})["evidence"] = self.evidence
        if self.sleep_after_s is not None:
            for one in values["applications"]:
                one["args"]["sleep"] = one["args"].get("sleep", {}) | {"after_s": self.sleep_after_s}
        if self.log_folder is not None:
            front["args"].setdefault("ingress", {})["access_log_folder"] = str(self.log_folder.absolute())

    def _replace_models(self, values: dict[str, Any], front: dict[str, Any]) -> None:
        first, *others = self.model_folders
        # The rest of the file's `model` section is dropped, because its name belongs to another model.
        front["args"]["model"] = {"folder": str(first.absolute())}
        args = {name: knobs for name, knobs in front["args"].items() if name in ModelApplicationSettings.model_fields}
        values["applications"] = [front]
        for folder in others:
            model = {"folder": str(folder.absolute())}
            further = {"name": folder.absolute().name, "route_prefix": None, "import_path": MODEL_IMPORT_PATH}
            values["applications"].append({**further, "args": {**args, "model": model}})


NO_OVERRIDES = Overrides()
