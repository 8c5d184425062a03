"""A soft TEE and a fake service with it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.attestation.soft import SoftTee
from redoubt_verify.policy import Policy, parse
from tests.verify.fake_service import FakeService, TlsKey, policy_text


@pytest.fixture(scope="session")
def machine() -> SoftTee:
    """Keys take a moment to make: one for all tests, which they do not change."""
    return SoftTee.make()


@pytest.fixture
def tee(machine: SoftTee) -> SoftTee:
    """One that a test may change."""
    return dataclasses.replace(machine)


@pytest.fixture
def policy(tee: SoftTee) -> Policy:
    """What the fake service meets."""
    return parse(policy_text(tee), allow_insecure=True)


@pytest.fixture
def service(tee: SoftTee, tmp_path: Path) -> Iterator[FakeService]:
    """An honest service; a test changes it before a client connects."""
    made = FakeService(tee, [TlsKey.make(tmp_path)])
    yield made
    made.close()


@pytest.fixture
def policy_file(service: FakeService, tmp_path: Path) -> Path:
    """What it meets, as a file."""
    path = tmp_path / "policy.toml"
    path.write_text(policy_text(service.tee))
    return path
