"""The Serve configuration file: Serve's own options and our applications, checked before anything starts.

Knows which keys a file may have. Starts nothing, and imports no Ray.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml  # type: ignore[import-untyped]
from pydantic import Field, model_validator

from app.launch.overrides import NO_OVERRIDES, Overrides
from app.model_check import opened_model
from app.model_folder import ChatModelError, missing_file
from app.models.store import model_here
from app.sealing.image import SealedModelError
from app.sealing.sealed_model import open_model
from app.settings.applications import ModelApplicationSettings, ServiceSettings
from app.settings.knobs import Knobs, SettingsError, first_twice, validated
from app.workers.encoder_load import is_encoder
from app.workers.numa import core_share
from quant.errors import QuantError

_VARIABLE = "env:"
DEFAULT_CONFIG = Path("ray_configs/local.yaml")
"""The default configuration of a clone. Elsewhere, a service whose model is named on the command line has the same
settings without the file."""


class HttpOptions(Knobs):
    """Ray Serve's `http_options`: where the service listens."""

    host: str = "127.0.0.1"
    """The address to listen on. The default is reachable from this machine only."""
    port: int = Field(default=8000, ge=1, le=65535)
    """The port of the API and the page."""
    request_timeout_s: float | None = Field(default=None, gt=0)
    """The longest time of a request, after which it is aborted; none: no limit."""
    keep_alive_timeout_s: int = Field(default=60, ge=0)
    """How long a connection without requests stays open."""

    @property
    def reachable_host(self) -> str:
        """A local address on which the service listens."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    def url(self, scheme: str = "http", port: int | None = None) -> str:
        """The URL for clients on this machine. port: another port at the same address."""
        host = self.reachable_host
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port or self.port}"


class LoggingOptions(Knobs):
    """Ray Serve's `logging_config`."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The lowest level that Ray Serve and its replicas log."""
    encoding: Literal["TEXT", "JSON"] = "TEXT"
    """The format of log lines."""
    logs_dir: str | None = None
    """The folder of the replicas' logs; none: Ray's session folder."""
    enable_access_log: bool = True
    """Log each HTTP request at INFO: method, path, status, time."""


class ApplicationConfig(Knobs):
    """The entry of Ray Serve's `applications` with the ingress and the workers of one model."""

    name: str = "redoubt"
    route_prefix: str = "/"
    import_path: Literal["app.deploy:build"]
    args: ServiceSettings
    runtime_env: dict[str, Any] = Field(default_factory=dict)


class ModelApplicationConfig(Knobs):
    """An entry with the workers of a further model, which the ingress finds."""

    name: str = Field(min_length=1)
    route_prefix: None
    """Must be null in the file: without the key Serve would set a route."""
    import_path: Literal["app.deploy:build_model"]
    args: ModelApplicationSettings
    runtime_env: dict[str, Any] = Field(default_factory=dict)


AnyApplicationConfig = Annotated[ApplicationConfig | ModelApplicationConfig, Field(discriminator="import_path")]


class ServiceConfig(Knobs):
    """A whole configuration file; no other top-level keys of Ray Serve's are allowed."""

    proxy_location: Literal["HeadOnly", "EveryNode", "Disabled"] = "HeadOnly"
    http_options: HttpOptions = Field(default_factory=HttpOptions)
    logging_config: LoggingOptions = Field(default_factory=LoggingOptions)
    applications: list[AnyApplicationConfig] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_ingress_and_unique_names(self) -> Self:
        if sum(isinstance(one, ApplicationConfig) for one in self.applications) != 1:
            raise ValueError("applications: exactly one has import_path app.deploy:build")
        for what, names in (
            ("name", [one.name for one in self.applications]),
            ("model name", [one.args.model.name for one in self.applications]),
        ):
            if len(set(names)) < len(names):
                raise ValueError(f"applications: two have the same {what}: {', '.join(names)}")
        if (twice := first_twice(name for one in self.applications for name in one.args.model.names)) is not None:
            raise ValueError(f"applications: two models have the name {twice!r}, one as one of its model.aliases")
        return self

    @property
    def application(self) -> ApplicationConfig:
        """The application with the ingress."""
        return next(one for one in self.applications if isinstance(one, ApplicationConfig))

    @property
    def model_applications(self) -> list[ModelApplicationConfig]:
        """Applications of further models, in the file's order."""
        return [one for one in self.applications if isinstance(one, ModelApplicationConfig)]


def load_config(path: Path, *, find: Callable[[str], Path] = model_here) -> ServiceConfig:
    """Reads and checks a configuration file. Raises SettingsError that names the file and each wrong setting.

    path: a file, or `env:NAME` for the text that is in an environment variable. find: as in `parse_config`.
    """
    if (name := variable_of(path)) is not None:
        if (text := os.environ.get(name)) is None:
            raise SettingsError(f"{path}: there is no environment variable {name}")
        return parse_config(text, name, find=find)
    try:
        return parse_config(path.read_text(encoding="utf-8"), str(path), find=find)
    except FileNotFoundError as error:
        raise SettingsError(
            f"{path}: {error.strerror}; name a model to serve, as in `redoubt serve qwen3-4b`, or a file by --config"
        ) from error
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not YAML: {error}") from error


def check_before_fetching(path: Path, names: Sequence[str]) -> None:
    """Refuses a configuration file whose models need not be there yet. Raises SettingsError.

    names: models of the command line, in place of the file's.
    """
    if not _is_default(path, names):
        load_config(path, find=_not_looked_up)


def _not_looked_up(name: str) -> Path:
    return Path(f"name: {name.replace('/', '--')}")  # as no other model of the file is called


def _is_default(path: Path, models: Sequence[str] | Sequence[Path]) -> bool:
    """Whether the default configuration stands in for a file that is not there, and models are named elsewhere."""
    return path == DEFAULT_CONFIG and bool(models) and not path.exists()


def default_config(model_folder: str) -> ServiceConfig:
    """The settings of ray_configs/local.yaml, for that model."""
    worker = {"max_concurrent_requests": 16, "ray_num_cpus": 0.5}
    args = {"model": {"folder": model_folder}, "worker": worker}
    application = {"import_path": "app.deploy:build", "args": args}
    return validated(
        ServiceConfig, {"logging_config": {"log_level": "WARNING"}, "applications": [application]}, "defaults"
    )


def variable_of(path: Path) -> str | None:
    """The environment variable that holds the configuration, if the path names one; else None."""
    text = str(path)
    return text.removeprefix(_VARIABLE) if text.startswith(_VARIABLE) else None


def parse_config(text: str, source: str, *, find: Callable[[str], Path] = model_here) -> ServiceConfig:
    """Parses the configuration from YAML. Raises SettingsError that names the source and each wrong setting.

    find: the folder of a model that has a name in place of one.
    """
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise SettingsError(f"{source}{where}: not YAML: {' '.join(str(problem or error).split())}") from error
    if not isinstance(values, dict):
        raise SettingsError(f"{source}: not a mapping of settings, as ray_configs/local.yaml is")
    for model in _named_models(values):
        try:
            model["folder"] = str(find(model.pop("name")))
        except (QuantError, OSError) as error:
            raise SettingsError(f"{source}: model.name: {error}") from error
    for model in _models_with_draft(values):
        try:
            model["draft"] = str(find(model["draft"]))
        except (QuantError, OSError) as error:
            raise SettingsError(f"{source}: model.draft: {error}") from error
    return validated(ServiceConfig, values, source)


def model_names(path: Path) -> list[str]:
    """The names of models in a configuration file; none in one that can't be read, which `load_config` refuses."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return []
    return [model["name"] for model in _named_models(values)] if isinstance(values, dict) else []


def draft_names(path: Path) -> list[str]:
    """The names or folders of draft models in a configuration file, likewise."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return []
    return [model["draft"] for model in _models_with_draft(values)] if isinstance(values, dict) else []


def _models(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The `model` sections."""
    applications = values.get("applications")
    found = []
    for one in applications if isinstance(applications, list) else ():
        args = one.get("args") if isinstance(one, dict) else None
        model = args.get("model") if isinstance(args, dict) else None
        if isinstance(model, dict):
            found.append(model)
    return found


def _named_models(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those that have a name in place of a folder."""
    return [model for model in _models(values) if isinstance(model.get("name"), str) and "folder" not in model]


def _models_with_draft(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [model for model in _models(values) if isinstance(model.get("draft"), str)]


def with_overrides(config: ServiceConfig, overrides: Overrides) -> ServiceConfig:
    """Applies values from the command line. Raises SettingsError."""
    values = config.model_dump(exclude_unset=True)
    overrides.apply(values)
    return validated(ServiceConfig, values, "command line")


def with_digests(config: ServiceConfig, digests: Mapping[str, str]) -> ServiceConfig:
    """Pins sealed models to their present digests, because their device is not ours and may change.

    digests: by model name.
    """
    applications = []
    for one in config.applications:
        model = one.args.model
        if model.sealed is not None:
            model = model.model_copy(update={"sha256": digests[model.name]})
        applications.append(one.model_copy(update={"args": one.args.model_copy(update={"model": model})}))
    return config.model_copy(update={"applications": applications})


def with_other_model(config: ServiceConfig, before: Path, after: Path) -> ServiceConfig:
    """Replaces a model's folder by another one."""
    applications = []
    for one in config.applications:
        args = one.args
        if args.model.folder == str(before):
            model = args.model.model_copy(update={"folder": str(after)})
            args = args.model_copy(update={"model": model})
        applications.append(one.model_copy(update={"args": args}))
    return config.model_copy(update={"applications": applications})


def shared_cores(config: ServiceConfig, node_cores: Sequence[int]) -> int | None:
    """How many cores each worker gets if there may be more workers than NUMA nodes and none has a number set.

    node_cores: the number of cores of each NUMA node. Otherwise returns None: each worker has a whole node or the cores
    that are set. Raises SettingsError if there are more workers than cores.
    """
    asked = [one.args.worker for one in config.applications]
    if any(one.cpus_per_worker is not None or one.numa == "all" for one in asked):
        return None
    with_cores = [one for one in config.applications if not _is_encoder(one)]
    alone = sum(one.args.worker.most for one in with_cores if one.args.sleep.after_s is None)
    sleepers = [one.args.worker.most for one in with_cores if one.args.sleep.after_s is not None]
    try:
        return core_share(node_cores, alone + max(sleepers, default=0))  # those that may sleep share cores
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _is_encoder(application: AnyApplicationConfig) -> bool:
    """Whether its workers run on the cores of others."""
    try:
        return is_encoder(open_model(application.args.model_card()))
    except (ChatModelError, SealedModelError, OSError):  # it is refused elsewhere
        return False


def checked_config(config_path: Path, overrides: Overrides = NO_OVERRIDES) -> ServiceConfig:
    """Reads the file and applies these overrides. Raises SettingsError, also if a model can't be opened."""
    folders = overrides.model_folders
    if _is_default(config_path, folders):
        config = default_config(str(folders[0].absolute()))
    else:
        config = load_config(config_path, find=_not_looked_up if folders else model_here)
    config = with_overrides(config, overrides)
    for application in config.applications:
        card = application.args.model_card()
        if (missing := missing_file(opened_model(card))) is not None:
            raise SettingsError(f"model.folder: {_why_not_served(Path(card.path), missing)}")
        if application.runtime_env:
            raise SettingsError(f"{config_path}: {application.name}: runtime_env is for clusters (`serve deploy`) only")
    return config


def _why_not_served(path: Path, missing: str) -> str:
    """Why a path is no converted model, and what to do. missing: a required file that it lacks."""
    convert = f"Convert it first: redoubt convert {path} {path.with_suffix('') if path.is_file() else path}-int4"
    if path.is_file():
        is_model = path.suffix in (".gguf", ".safetensors")
        return f"{path} is a file, and no folder of a converted model.{f' {convert}' if is_model else ''}"
    if not path.exists():
        return f"{path}: there is no such folder"
    reason = f"{path} is not a converted model: it has no {missing}"
    return f"{reason}. {convert}" if any(path.glob("*.safetensors")) else reason
