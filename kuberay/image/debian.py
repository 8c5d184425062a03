"""Debian's packages by apt, beside this machine's own: which ones a list needs, and their files, checked by hash.

Works with folders of its own, so it changes nothing of this machine's packages. The mirror is the one that this
machine's apt uses, or that of the variables DEBIAN_MIRROR and DEBIAN_SECURITY_MIRROR. Knows nothing of the image.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from kuberay.image.locks import Deb

SUITE = "trixie"
ESSENTIAL = "?and(?essential, ?not(?exact-name(apt)))"
"""apt counts itself among the essential packages; the image needs none."""
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class DebianError(RuntimeError):
    """A package cannot be had; the message says what to do."""


def mirrors() -> tuple[str, str]:
    """The addresses of Debian's archive and of its security archive. Raises DebianError if apt knows none."""
    listed = ["apt-get", "indextargets", "--format", "$(LABEL)|$(REPO_URI)", "Created-By: Packages", "Origin: Debian"]
    output = subprocess.run(listed, capture_output=True, text=True).stdout
    by_label = dict(line.split("|", 1) for line in output.splitlines())
    main = os.environ.get("DEBIAN_MIRROR") or by_label.get("Debian")
    security = os.environ.get("DEBIAN_SECURITY_MIRROR") or by_label.get("Debian-Security")
    if not main or not security:
        raise DebianError("this machine's apt has no Debian mirror: set DEBIAN_MIRROR and DEBIAN_SECURITY_MIRROR")
    return main.rstrip("/"), security.rstrip("/")


class Archive:
    """Debian 13's index, read into `folder`. Raises DebianError if it cannot be read."""

    def __init__(self, folder: Path) -> None:
        for name in ("lists/partial", "archives/partial", "etc/apt.conf.d", "etc/preferences.d"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        main, security = mirrors()
        sources = [f"{main} {SUITE}", f"{main} {SUITE}-updates", f"{security} {SUITE}-security"]
        lines = [f"deb [signed-by={KEYRING}] {source} main\n" for source in sources]
        (folder / "etc/sources.list").write_text("".join(lines))
        self._configuration = folder / "apt.conf"
        self._configuration.write_text(
            f'Dir::Etc "{folder}/etc"; Dir::State "{folder}"; Dir::State::status "{folder}/status";\n'
            f'Dir::Cache "{folder}"; APT::Architecture "amd64"; APT::Architectures "amd64";\n'
            'APT::Install-Recommends "false"; Acquire::Languages "none"; APT::Sandbox::User "root";\n'
        )
        self._apt_get("update")

    def closure(self, names: Sequence[str]) -> list[tuple[str, str, str]]:
        """(name, version, architecture) of Debian's essential packages, of these, and of all that they depend on."""
        printed = self._apt_get("install", "--print-uris", "-qq", "--yes", ESSENTIAL, *names)
        packages = []
        for line in printed.splitlines():
            name, version, architecture = line.split()[1].removesuffix(".deb").split("_")
            packages.append((name, version.replace("%3a", ":"), architecture))
        return packages

    def download(self, packages: Iterable[str], into: Path) -> None:
        """Downloads `name=version` each; apt checks their signatures. Raises DebianError."""
        if wanted := list(packages):
            self._apt_get("download", *wanted, cwd=into)

    def _apt_get(self, *arguments: str, cwd: Path | None = None) -> str:
        environment = {**os.environ, "APT_CONFIG": str(self._configuration)}
        done = subprocess.run(["apt-get", *arguments], env=environment, cwd=cwd, capture_output=True, text=True)
        if done.returncode != 0:
            hint = "; if the mirror has newer packages, run `make image-lock` or name a mirror of snapshots"
            raise DebianError(f"apt-get {arguments[0]}: {done.stderr.strip()}{hint}")
        return done.stdout


def fetch(debs: Sequence[Deb], cache: Path, work: Path) -> list[Path]:
    """The packages' files in `cache`, downloaded if they are not there yet. Raises DebianError for a wrong hash."""
    cache.mkdir(parents=True, exist_ok=True)
    missing = [deb for deb in debs if not (cache / deb.file_name).exists()]
    if missing:
        Archive(work / "apt").download((f"{deb.name}={deb.version}" for deb in missing), cache)
    for deb in debs:
        if sha256_of(cache / deb.file_name) != deb.sha256:
            raise DebianError(f"{cache / deb.file_name} is not the file of packages.lock")
    return [cache / deb.file_name for deb in debs]


def write_repository(debs: Sequence[Deb], cache: Path, folder: Path) -> None:
    """A repository of just these packages, for mmdebstrap: links and an index."""
    folder.mkdir(parents=True)
    entries = []
    for deb in debs:
        source = cache / deb.file_name
        name = deb.file_name.replace("%3a", "-")
        os.link(source, folder / name)
        control = subprocess.run(["dpkg-deb", "--field", source], check=True, capture_output=True, text=True).stdout
        size = source.stat().st_size
        entries.append(f"{control.strip()}\nFilename: ./{name}\nSize: {size}\nSHA256: {deb.sha256}\n")
    index = folder / "Packages"
    index.write_text("\n".join(entries))
    files = f" {sha256_of(index)} {index.stat().st_size} Packages\n"
    (folder / "Release").write_text(f"Origin: Debian\nSuite: {SUITE}\nCodename: {SUITE}\nSHA256:\n{files}")


def sha256_of(path: Path) -> str:
    """The file's hash in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
