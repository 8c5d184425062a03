"""The configuration file while the service runs: what of a change can be made in place, and what needs a new Ray.

Knows the file, and nothing of how a change is made.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.launch.config_file import ModelApplicationConfig, ServiceConfig


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """How the file differs from what is served."""

    config: ServiceConfig
    """What is to be served; what the main process has fixed at its start is as it was."""
    gone: tuple[str, ...]
    """Applications of further models to take away, by name."""
    new: tuple[ModelApplicationConfig, ...]
    """Applications of further models to deploy."""
    needs_new_ray: bool
    """Whether more has changed than that: then everything is started anew, beside what runs."""
    at_next_start: tuple[str, ...]
    """Settings whose change has no effect before the service is started again."""


class WatchedConfig:
    """The file after the start."""

    def __init__(self, path: Path, served: ServiceConfig, load: Callable[[], ServiceConfig]) -> None:
        """served: the configuration at the start. load: reads the file, with the command line's overrides."""
        self.served = served
        """What is served now; whoever makes a change keeps it up to date."""
        self._path = path
        self._load = load
        self._seen = self._stamp()

    def change(self) -> ConfigChange | None:
        """What to change, if the file was written since the last call; None: nothing.

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
            return None  # for a moment there is no file: editors replace files
        return status.st_mtime_ns, status.st_size


def _as_started(read: ServiceConfig, served: ServiceConfig) -> tuple[ServiceConfig, tuple[str, ...]]:
    """The configuration with what can't change while the main process runs, and the names of what was to change."""
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
