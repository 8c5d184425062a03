"""Watches a running service's configuration file: which changes apply in place, and which need a new Ray.

Knows the file, and nothing of how a change is applied.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.launch.config_file import ModelApplicationConfig, ServiceConfig


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """The difference between the file and what is served."""

    config: ServiceConfig
    """The configuration to serve; values that are fixed at the main process' start are unchanged."""
    gone: tuple[str, ...]
    """Names of further models' applications to delete."""
    new: tuple[ModelApplicationConfig, ...]
    """Further models' applications to deploy."""
    needs_new_ray: bool
    """Whether more than those has changed, so that a new Ray must be started beside the present one."""
    at_next_start: tuple[str, ...]
    """Settings whose change takes effect only when the service is restarted."""


class WatchedConfig:
    """The file after the start."""

    def __init__(self, path: Path, served: ServiceConfig, load: Callable[[], ServiceConfig]) -> None:
        """served: the configuration at the start. load: reads the file, with the command line's overrides."""
        self.served = served
        """The configuration served now; whoever applies a change updates it."""
        self._path = path
        self._load = load
        self._seen = self._stamp()

    def change(self) -> ConfigChange | None:
        """Returns the changes if the file was written since the last call; None: no changes.

        Raises SettingsError once for each version of the file that is wrong.
        """
        stamp = self._stamp()
        if stamp == self._seen or stamp is None:
            return None
        self._seen = stamp
        read = self._load()
        wanted, fixed = _as_started(read, self.served)
        before = {one.name: one for one in self.served.model_applications}
        after = {one.name: one for one in wanted.model_applications}
        needs_new_ray = (
            wanted.application != self.served.application
            or wanted.logging_config != self.served.logging_config
            or wanted.http_options != self.served.http_options
            or any(before[name] != one for name, one in after.items() if name in before)
        )
        gone = tuple(name for name in before if name not in after)
        new = tuple(one for name, one in after.items() if name not in before)
        if not (needs_new_ray or gone or new or fixed):
            return None
        return ConfigChange(wanted, gone, new, needs_new_ray, fixed)

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None  # editors replace files, so there may be none for a moment
        return status.st_mtime_ns, status.st_size


def _as_started(read: ServiceConfig, served: ServiceConfig) -> tuple[ServiceConfig, tuple[str, ...]]:
    """Restores values that can't change while the main process runs; returns the names of those that were to change."""
    fixed = [
        f"http_options.{name}"
        for name in ("host", "port")
        if getattr(read.http_options, name) != getattr(served.http_options, name)
    ]
    if read.proxy_location != served.proxy_location:
        fixed.append("proxy_location")
    address = {"host": served.http_options.host, "port": served.http_options.port}
    attestation = served.application.args.attestation
    if read.application.args.attestation != attestation:
        fixed.append("attestation")
    args = read.application.args.model_copy(update={"attestation": attestation})
    front = read.application.model_copy(update={"args": args})
    return read.model_copy(
        update={
            "http_options": read.http_options.model_copy(update=address),
            "proxy_location": served.proxy_location,
            "applications": [front if one is read.application else one for one in read.applications],
        }
    ), tuple(fixed)
