"""The image's locks, bill of materials, layer and Dockerfile: what can be checked without building the image."""

import io
import json
import re
import tarfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from kuberay.image import locks
from kuberay.image.debian import DebianError, fetch
from kuberay.image.layer import write_layer
from kuberay.image.locks import Deb, LockError, read_packages, read_wheels
from kuberay.image.root_files import ENVIRONMENT, UNUSED, USER_ID, WORKING_FOLDER
from kuberay.image.sbom import write_sbom
from tests.needed_packages import needed
from tools.locks import LOCKS, read_lock

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERIFIER = tomllib.loads((ROOT / "verify" / "pyproject.toml").read_text())
IMAGE_PYTHON = 13


def test_wheels_are_what_serving_and_verifying_need_and_no_more() -> None:
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["postgres"]]
    assert {wheel.name for wheel in read_wheels()} == needed(
        [*wanted, *VERIFIER["project"]["dependencies"]], IMAGE_PYTHON
    )


def test_build_wheels_are_what_the_compiler_needs() -> None:
    names = {wheel.name for wheel in read_wheels(locks.BUILD_WHEELS)}
    ours = [*PROJECT["optional-dependencies"]["build"], *VERIFIER["build-system"]["requires"]]
    assert names == needed(["pip", *ours], IMAGE_PYTHON)


def test_wheels_are_among_those_of_the_requirements_locks() -> None:
    locked = {
        (requirement.name, str(requirement.specifier), sha256)
        for path in LOCKS.glob("*.lock")
        for requirement, hashes in read_lock(path)
        for sha256 in hashes
    }
    wheels = {
        (wheel.name, f"=={wheel.version}", wheel.sha256) for wheel in [*read_wheels(), *read_wheels(locks.BUILD_WHEELS)]
    }
    assert {name for name, _, _ in wheels - locked} == {"pip"}


def test_packages_hold_no_compiler_for_the_image() -> None:
    debs = read_packages()
    names = {deb.name for deb in debs if deb.purpose != "build"}
    assert {"python3", "bash", "ca-certificates", "haproxy", "libstdc++6"} <= names
    assert not {name for name in names if re.match(r"g\+\+|gcc-1\d$|cpp|binutils|apt$|python3-pip", name)}
    assert {"g++", "python3-dev"} <= {deb.name for deb in debs if deb.purpose != "image"}


@pytest.mark.parametrize("line", ["python3 3.13.5-1 amd64 abc image", "python3 3.13.5-1 amd64", "python3"])
def test_a_damaged_lock_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "packages.lock").write_text(f"# a comment\n{line}\n")
    with pytest.raises(LockError, match=re.escape(line)):
        read_packages(tmp_path / "packages.lock")
    (tmp_path / "wheels.lock").write_text(f"{line}==1\n")
    with pytest.raises(LockError, match="not a wheel"):
        read_wheels(tmp_path / "wheels.lock")


def test_a_package_with_another_hash_is_refused(tmp_path: Path) -> None:
    deb = Deb("hello", "1:2.0-1", "amd64", "0" * 64, "image")
    (tmp_path / "hello_1%3a2.0-1_amd64.deb").write_bytes(b"something else")
    with pytest.raises(DebianError, match=r"hello_1%3a2\.0-1_amd64\.deb is not the file of packages\.lock"):
        fetch([deb], tmp_path, tmp_path)


def write_sbom_of_locks(path: Path) -> str:
    write_sbom(path, [deb for deb in read_packages() if deb.purpose != "build"], read_wheels(), "1.0", 1_700_000_000)
    return path.read_text()


def test_the_bill_of_materials_is_valid_and_complete(tmp_path: Path) -> None:
    text = write_sbom_of_locks(tmp_path / "sbom.json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    components = {one["purl"]: one for one in json.loads(text)["components"]}
    assert len(components) == len(read_wheels()) + sum(deb.purpose != "build" for deb in read_packages())
    (ray,) = [wheel for wheel in read_wheels() if wheel.name == "ray"]
    assert components[f"pkg:pypi/ray@{ray.version}"]["hashes"] == [{"alg": "SHA-256", "content": ray.sha256}]
    assert write_sbom_of_locks(tmp_path / "again.json") == text


def write_tar(path: Path, names: Iterable[str], time_s: int, owner: str) -> None:
    """Files, folders (with a slash at the end), a link and a hard link, as mmdebstrap's tar has them."""
    with tarfile.open(path, "w") as tar:
        for name in names:
            member = tarfile.TarInfo(f"./{name.rstrip('/')}")
            member.mtime, member.uname, member.mode = time_s, owner, 0o4755
            if name.endswith("/"):
                member.type = tarfile.DIRTYPE
                tar.addfile(member)
            elif name == "usr/bin/link":
                member.type, member.linkname = tarfile.SYMTYPE, "perl"
                tar.addfile(member)
            elif name == "usr/bin/hard":
                member.type, member.linkname = tarfile.LNKTYPE, "./usr/bin/perl"
                tar.addfile(member)
            else:
                member.size = len(name)
                tar.addfile(member, io.BytesIO(name.encode()))


def test_the_layer_depends_on_the_files_alone(tmp_path: Path) -> None:
    kept = ["usr/", "usr/bin/", "usr/bin/perl", "usr/bin/link", "usr/bin/hard", "etc/", "tmp/", "dev/"]
    left_out = ["dev/null", "var/cache/ldconfig/aux-cache", "var/log/dpkg.log", "etc/machine-id", "etc/resolv.conf"]
    write_tar(tmp_path / "a.tar", [*kept, *left_out], 1_000, "root")
    write_tar(tmp_path / "b.tar", [kept[0], *kept[5:], *left_out[1:], *kept[1:5]], 2_000, "builder")
    sizes = [write_layer(tmp_path / f"{name}.tar", tmp_path / f"{name}-layer.tar", 1_234) for name in "ab"]
    assert sizes == [2 * len("usr/bin/perl")] * 2
    first, second = ((tmp_path / f"{name}-layer.tar").read_bytes() for name in "ab")
    assert first == second
    with tarfile.open(tmp_path / "a-layer.tar") as layer:
        members = {member.name: member for member in layer}
        mounted = {"etc/hostname", "etc/hosts", "etc/resolv.conf"}
        assert set(members) == {name.rstrip("/") for name in kept} | mounted
        assert list(members) == sorted(members)
        assert {member.mtime for member in members.values()} == {1_234}
        assert members["usr/bin/perl"].mode == 0o755
        assert members["etc/resolv.conf"].size == 0
        hard = layer.extractfile("usr/bin/hard")
        assert hard is not None
        assert hard.read() == b"usr/bin/perl"


def test_the_dockerfile_makes_the_same_image() -> None:
    text = (ROOT / "kuberay/image/Dockerfile").read_text()
    assert "FROM debian:trixie-slim@${BASE_DIGEST}" in text
    for path in re.findall(r"kuberay/image/\S+", text):
        assert (ROOT / path).is_file(), path
    for lock in ("packages.lock", "build.lock", "wheels.lock"):
        assert f"kuberay/image/{lock}" in text
    installs = [line for line in text.replace("\\\n", "").splitlines() if "pip install" in line and "/locks/" in line]
    assert len(installs) == 2
    assert all("--require-hashes --no-deps" in line for line in installs)
    last = text.rpartition("\nFROM ")[2]
    assert 'ENTRYPOINT ["redoubt"]' in last
    assert "CMD" not in last
    assert f"USER {USER_ID}:{USER_ID}\nWORKDIR {WORKING_FOLDER}\n" in last
    assert "ENV " + " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items()) in last


def test_the_dockerfile_leaves_out_the_same_files() -> None:
    text = (ROOT / "kuberay/image/Dockerfile").read_text()
    assert "rm -r " + " ".join(UNUSED) in text
