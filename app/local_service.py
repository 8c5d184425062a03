"""Runs the service on this machine, in the foreground. Interface only; being written."""

from pathlib import Path


def serve_local(
    config_path: Path, *, host: str | None = None, port: int | None = None, model_folder: Path | None = None
) -> int:
    """Starts a private Ray, deploys the file with these overrides, prints the address, waits, cleans up.

    Returns the process' exit status: 0 after SIGINT or SIGTERM, 1 if the service did not start.
    Raises SettingsError for a wrong configuration before anything is started.
    """
    raise NotImplementedError
