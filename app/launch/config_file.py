"""The Serve config file: its own options and our applications, checked before anything starts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml  # type: ignore[import-untyped]
from pydantic import Field, model_validator

from app.settings import Knobs, ServiceSettings, SettingsError, WorkersSettings, validated

MODEL_IMPORT_PATH = "app.deploy:build_model"


class HttpOptions(Knobs):
    """Ray Serve's `http_options`: where the service listens."""

    host: str = "127.0.0.1"
    """The address the proxy listens on; the default is reachable from this machine only."""
    port: int = Field(default=8000, ge=1, le=65535)
    """The port of the API and the page."""
    request_timeout_s: float | None = Field(default=None, gt=0)
    """A request that takes longer is ended; none: no limit."""
    keep_alive_timeout_s: int = Field(default=60, ge=0)
    """How long an idle connection is kept open."""


class LoggingOptions(Knobs):
    """Ray Serve's `logging_config`."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Of Ray Serve and its replicas."""
    encoding: Literal["TEXT", "JSON"] = "TEXT"
    """How a line of the log looks."""
    logs_dir: str | None = None
    """Where replicas write their logs; none: Ray's session folder."""
    enable_access_log: bool = True
    """One line per HTTP request at INFO: method, path, status, time."""


class ApplicationConfig(Knobs):
    """The entry of Ray Serve's `applications` that has the front door, and one model's workers."""

    name: str = "redoubt"
    route_prefix: str = "/"
    import_path: Literal["app.deploy:build"]
    args: ServiceSettings
    runtime_env: dict[str, Any] = Field(default_factory=dict)


class ModelApplicationConfig(Knobs):
    """A further entry: another model's workers. The front door finds them."""

    name: str = Field(min_length=1)
    route_prefix: None
    """Written out as null: Serve would give it a route otherwise."""
    import_path: Literal["app.deploy:build_model"]
    args: WorkersSettings
    runtime_env: dict[str, Any] = Field(default_factory=dict)


AnyApplicationConfig = Annotated[ApplicationConfig | ModelApplicationConfig, Field(discriminator="import_path")]


class ServiceConfig(Knobs):
    """A whole config file: the knobs above, and of Ray Serve's own those that are named here."""

    proxy_location: Literal["HeadOnly", "EveryNode", "Disabled"] = "HeadOnly"
    http_options: HttpOptions = Field(default_factory=HttpOptions)
    logging_config: LoggingOptions = Field(default_factory=LoggingOptions)
    applications: list[AnyApplicationConfig] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_front_door_and_no_name_twice(self) -> Self:
        if sum(isinstance(one, ApplicationConfig) for one in self.applications) != 1:
            raise ValueError("applications: exactly one has import_path app.deploy:build")
        for what, names in (
            ("name", [one.name for one in self.applications]),
            ("model name", [one.args.model.name for one in self.applications]),
        ):
            if len(set(names)) < len(names):
                raise ValueError(f"applications: two have the same {what}: {', '.join(names)}")
        return self

    @property
    def application(self) -> ApplicationConfig:
        """The one with the front door."""
        return next(one for one in self.applications if isinstance(one, ApplicationConfig))

    @property
    def model_applications(self) -> list[ModelApplicationConfig]:
        """The others, in the file's order."""
        return [one for one in self.applications if isinstance(one, ModelApplicationConfig)]


def load_config(path: Path) -> ServiceConfig:
    """Reads and checks a config file. Raises SettingsError naming the file and each wrong knob."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not YAML: {error}") from error
    if not isinstance(values, dict):
        raise SettingsError(f"{path}: not a mapping of knobs")
    return validated(ServiceConfig, values, str(path))


def with_overrides(
    config: ServiceConfig,
    *,
    host: str | None = None,
    port: int | None = None,
    model_folders: Sequence[str] = (),
) -> ServiceConfig:
    """The same configuration with what the command line says instead. Raises SettingsError.

    model_folders: replace the file's models; each beyond the first becomes an application of its own, with the front
    door's settings.
    """
    values = config.model_dump(exclude_unset=True)
    http = values.setdefault("http_options", {})
    if host is not None:
        http["host"] = host
    if port is not None:
        http["port"] = port
    if model_folders:
        # The names in the file are the other models'.
        front = config.application.model_dump(exclude_unset=True)
        front["args"]["model"] = {"folder": model_folders[0]}
        args = {name: knobs for name, knobs in front["args"].items() if name != "ingress"}
        values["applications"] = [front]
        for folder in model_folders[1:]:
            further = {"name": Path(folder).absolute().name, "route_prefix": None, "import_path": MODEL_IMPORT_PATH}
            values["applications"].append({**further, "args": {**args, "model": {"folder": folder}}})
    return validated(ServiceConfig, values, "command line")


def core_share(config: ServiceConfig, node_cores: Sequence[int]) -> int | None:
    """Cores for each worker, where they are more than the machine's NUMA nodes and none says how many it wants.

    node_cores: of each node of this machine. None: each has a node, or what it says. Raises SettingsError if there are
    more workers than cores.
    """
    asked = [one.args.worker for one in config.applications]
    workers = sum(one.count if one.autoscaling is None else one.autoscaling.max_workers for one in asked)
    if workers <= len(node_cores) or any(one.cpus_per_worker is not None or one.numa == "all" for one in asked):
        return None
    share = min(node_cores) // -(-workers // len(node_cores))
    if share == 0:
        raise SettingsError(f"{workers} workers are more than the {sum(node_cores)} cores of this machine")
    return share


def checked_config(
    config_path: Path, *, host: str | None = None, port: int | None = None, model_folders: Sequence[Path] = ()
) -> ServiceConfig:
    """The configuration with its overrides, and its models there. Raises SettingsError."""
    folders = [str(folder.absolute()) for folder in model_folders]
    config = with_overrides(load_config(config_path), host=host, port=port, model_folders=folders)
    for application in config.applications:
        model = Path(application.args.model.folder)
        for name in ("config.json", "model.safetensors"):
            if not (model / name).is_file():
                raise SettingsError(f"model.folder: {model} is no converted model: it has no {name}")
        if application.runtime_env:
            raise SettingsError(f"{config_path}: {application.name}: runtime_env is for clusters (`serve deploy`) only")
    return config
