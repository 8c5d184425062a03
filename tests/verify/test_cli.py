"""The commands, as a user types them, with their exit codes."""

import base64
import hashlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from app.attestation.soft import SoftTee
from redoubt_verify import cli
from tests.verify.fake_service import FakeService, http_response, policy_text


@pytest.fixture
def root_file(tee: SoftTee, tmp_path: Path) -> Path:
    path = tmp_path / "root.pem"
    path.write_bytes(tee.pki.root.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
def evidence_file(service: FakeService, tmp_path: Path) -> Path:
    path = tmp_path / "evidence.json"
    path.write_text(json.dumps(service.answer("12" * 32, service.keys[0].spki_sha256)))
    return path


def _run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def test_verify(service: FakeService, policy_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("verify", service.url, "--policy", policy_file, "--allow-insecure") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("INSECURE")
    assert service.tee.report.mr_td.hex() in shown
    assert _run("verify", service.url, "--policy", policy_file, "--allow-insecure", "--json") == 0
    assert json.loads(capsys.readouterr().out)["insecure"] is True


def test_verify_refuses(service: FakeService, policy_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service.image = None
    assert _run("verify", service.url, "--policy", policy_file, "--allow-insecure", "--json") == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["refused"] == "measurement"
    assert printed.err.startswith("REFUSED  measurement")


def test_verify_with_a_wrong_policy(service: FakeService, policy_file: Path, tmp_path: Path) -> None:
    assert _run("verify", service.url, "--policy", policy_file) == 2
    assert _run("verify", service.url, "--policy", tmp_path / "none.toml") == 2
    policy_file.write_text(policy_text(service.tee, expires="2020-01-01"))
    assert _run("verify", service.url, "--policy", policy_file, "--allow-insecure") == 2
    policy_file.write_text("expires = ")
    assert _run("verify", service.url, "--policy", policy_file, "--allow-insecure") == 2
    assert not service.raw


def test_verify_of_nothing(service: FakeService, policy_file: Path) -> None:
    service.close()
    assert _run("verify", service.url, "--policy", policy_file, "--allow-insecure") == 3


def test_verify_saves_and_verifies_offline(
    service: FakeService, policy_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved.json"
    assert _run("verify", service.url, "--policy", policy_file, "--allow-insecure", "--save", saved) == 0
    capsys.readouterr()
    assert _run("verify", "--offline", saved, "--policy", policy_file, "--allow-insecure", "--json") == 0
    assert json.loads(capsys.readouterr().out)["unpinned"] == ["nonce", "tls_spki_sha256"]
    nonce = service.requests[0][0].partition("nonce=")[2]
    offline = ("verify", "--offline", saved, "--policy", policy_file, "--allow-insecure")
    assert _run(*offline, "--nonce", nonce) == 0
    assert _run(*offline, "--nonce", "00" * 32) == 1
    assert _run(*offline, "--at", "2030-01-01") == 1
    assert _run("verify", "--policy", policy_file, "--allow-insecure") == 2
    policy_file.write_text(policy_text(service.tee, expires="2020-01-01"))
    assert _run(*offline) == 2


def test_build_show_and_diff(
    service: FakeService,
    evidence_file: Path,
    root_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    built, other, initdata = tmp_path / "built.toml", tmp_path / "other.toml", tmp_path / "initdata.toml"
    initdata.write_text('version = "0.1.0"\n')
    build = ("policy", "build", evidence_file, "--insecure-root", root_file)
    assert _run(*build, "--out", built) == 0
    assert _run("verify", service.url, "--policy", built, "--allow-insecure") == 0
    assert _run(*build, "--initdata", initdata, "--out", other) == 0
    capsys.readouterr()
    assert _run("policy", "diff", built, built) == 0
    assert _run("policy", "diff", built, other) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("mr_config_id\n")
    assert hashlib.sha384(initdata.read_bytes()).hexdigest() in shown
    assert _run("verify", service.url, "--policy", other, "--allow-insecure") == 1
    capsys.readouterr()
    assert _run("policy", "show", built) == 0
    assert json.loads(capsys.readouterr().out)["models"] == [["smollm2", "e1" * 32]]


def test_build_with_collateral_that_the_service_does_not_have(
    evidence_file: Path, root_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = json.loads(evidence_file.read_text())
    collateral = tmp_path / "collateral.json"
    collateral.write_text(json.dumps(answer["collateral"]))
    evidence_file.write_text(json.dumps(answer | {"collateral": None}))
    build = ("policy", "build", evidence_file, "--insecure-root", root_file)
    assert _run(*build) == 1
    assert "collateral_missing" in capsys.readouterr().err
    assert _run(*build, "--collateral", collateral) == 0


def test_build_believes_no_evidence_of_an_unknown_root(evidence_file: Path, tmp_path: Path) -> None:
    assert _run("policy", "build", evidence_file, "--out", tmp_path / "built.toml") == 1
    assert not (tmp_path / "built.toml").exists()


def test_proxy_does_not_start_for_a_refused_service(service: FakeService, policy_file: Path) -> None:
    service.config = "00" * 32
    assert _run("proxy", service.url, "--policy", policy_file, "--allow-insecure", "--listen", "127.0.0.1:0") == 1


def test_proxy_listens_on_loopback_only(service: FakeService, policy_file: Path) -> None:
    proxy = ("proxy", service.url, "--policy", policy_file, "--allow-insecure", "--listen")
    for address in ("0.0.0.0:0", "nonsense", "127.0.0.1:99999", f"127.0.0.1:{service.port}"):
        assert _run(*proxy, address) == 2


@pytest.mark.parametrize("text", ["", "null", "{}", "[]"])
def test_collateral_that_is_none_is_not_replaced_by_the_services(
    service: FakeService, policy_file: Path, tmp_path: Path, text: str
) -> None:
    (tmp_path / "collateral.json").write_text(text)
    verify = ("verify", service.url, "--policy", policy_file, "--allow-insecure")
    assert _run(*verify, "--collateral", tmp_path / "collateral.json") == 1
    assert not service.raw


@pytest.mark.parametrize("option", [("--at", "2020-01-01"), ("--nonce", "00" * 32)])
def test_options_for_files_are_not_for_connections(
    service: FakeService, policy_file: Path, option: tuple[str, str]
) -> None:
    assert _run("verify", service.url, "--policy", policy_file, "--allow-insecure", *option) == 2
    assert not service.raw


@pytest.mark.parametrize("text", ["{}", '{"quote": 1}', '{"a": ' + "[" * 100_000])
def test_collateral_of_no_answer(tmp_path: Path, text: str) -> None:
    (tmp_path / "evidence").write_text(text)
    assert _run("collateral", tmp_path / "evidence", "--out", tmp_path / "c.json", "--pccs", "http://127.0.0.1:1") == 1


def test_collateral_of_an_unreachable_service(evidence_file: Path, tmp_path: Path) -> None:
    quote = tmp_path / "quote"
    quote.write_bytes(base64.b64decode(json.loads(evidence_file.read_text())["quote"]))
    for evidence in (evidence_file, quote):
        assert _run("collateral", evidence, "--out", tmp_path / "c.json", "--pccs", "http://127.0.0.1:1") == 3
    assert not (tmp_path / "c.json").exists()


def test_a_busy_service_is_unreachable(service: FakeService, policy_file: Path) -> None:
    service.respond = lambda answer: [http_response(b"{}", "503 Busy")]
    assert _run("verify", service.url, "--policy", policy_file, "--allow-insecure") == 3


@pytest.mark.parametrize(
    "line", [[], ["frob"], ["verify"], ["policy", "build", "--days", "x", "e"], ["proxy", "--frob"]]
)
def test_a_wrong_command_line_is_one_line(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(line)
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("redoubt-verify: ")
    assert told.err.count("\n") == 1
    assert "; see redoubt-verify" in told.err
