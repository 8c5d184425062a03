"""A Postgres of its own on loopback, from Debian's programs, which are not on the path."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.processes import free_port

PROGRAMS = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
_START_TIMEOUT_S = 60.0


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """Runs a Postgres and yields its URL. Raises RuntimeError if there are no programs, or it does not start."""
    if PROGRAMS is None:
        raise RuntimeError("there is no Postgres on this machine (Debian: postgresql)")
    # A temporary folder may be closed to other users, and Postgres refuses to run as root.
    with tempfile.TemporaryDirectory(prefix="redoubt-postgres-") as name, (Path(name) / "log").open("wb") as log:
        folder, port = Path(name) / "data", free_port()
        as_user: list[str | Path] = []
        if os.geteuid() == 0:
            as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            shutil.chown(name, "postgres")
        made: list[str | Path] = [*as_user, PROGRAMS / "initdb", "-D", folder]
        subprocess.run([*made, "-A", "trust", "-U", "redoubt", "--no-sync"], check=True, capture_output=True)
        options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-p", str(port)]
        server = subprocess.Popen([*as_user, PROGRAMS / "postgres", "-D", folder, *options], stdout=log, stderr=log)
        ready: list[str | Path] = [PROGRAMS / "pg_isready", "-h", "127.0.0.1", "-p", str(port), "-q"]
        try:
            give_up_s = time.monotonic() + _START_TIMEOUT_S
            while subprocess.run(ready, check=False).returncode:
                if time.monotonic() > give_up_s or server.poll() is not None:
                    raise RuntimeError("Postgres does not start")
                time.sleep(0.1)
            yield f"postgresql+psycopg://redoubt@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGQUIT)  # waits for no client and writes nothing down: its files go
            server.wait(30)
