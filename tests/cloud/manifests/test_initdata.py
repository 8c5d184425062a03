"""The initdata: the same bytes from the same overlay, what guests read of it, and the digest that clients demand."""

import base64
import gzip
import hashlib
import io
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from cryptography.hazmat.primitives import serialization

from app.attestation.soft import SoftTee
from app.attestation.statement import Facts, report_data, statement
from kuberay.confidential.command import main
from kuberay.confidential.initdata import InitdataError, annotation, digest, initdata
from kuberay.confidential.workloads import ANNOTATION, pod_templates
from redoubt_verify import cli
from tests.cloud.manifests.confidential import IMAGE, KBS, OVERLAYS, Made, certificate, made, rendered
from tests.cloud.manifests.edits import at, edited
from tests.cloud.manifests.kubectl import Document

REPOSITORY = IMAGE.partition("@")[0]


def files(data: bytes) -> dict[str, Any]:
    """What the guest unpacks."""
    table = tomllib.loads(data.decode())
    assert (table["version"], table["algorithm"]) == ("0.1.0", "sha384")
    return dict(table["data"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_guests_configuration(overlay: str) -> None:
    unpacked = files(made(overlay).initdata)
    assert unpacked.keys() == {"aa.toml", "cdh.toml", "policy.rego"}
    agent, hub = (tomllib.loads(unpacked[name]) for name in ("aa.toml", "cdh.toml"))
    assert agent["token_configs"]["kbs"] == {"url": KBS, "cert": certificate()}
    assert hub["kbc"] == {"name": "cc_kbc", "url": KBS, "kbs_cert": certificate()}
    images = json.loads(hub["image"]["image_security_policy"])
    assert images["default"] == [{"type": "reject"}]
    assert images["transports"] == {"docker": {REPOSITORY: [{"type": "insecureAcceptAnything"}]}}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_carries_it(overlay: str) -> None:
    for _, template in pod_templates(made(overlay).documents):
        carried = template["metadata"]["annotations"][ANNOTATION]
        assert gzip.decompress(base64.b64decode(carried, validate=True)) == made(overlay).initdata
        assert len(carried) < 200_000  # all annotations of a pod: 256 KiB


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_it_is_the_same_each_time(overlay: str) -> None:
    """Also when it is made of the manifests that it was put into."""
    for documents in (rendered(overlay), made(overlay).documents):
        again = Made(documents)
        assert again.initdata == made(overlay).initdata
        assert annotation(again.initdata) == annotation(made(overlay).initdata)
        assert again.documents == made(overlay).documents


def test_any_change_of_a_container_is_another_digest() -> None:
    (deployment,) = [each for each in rendered("confidential-single") if each["kind"] == "Deployment"]
    container = "spec.template.spec.containers.0"
    digests = {
        Made([edited(deployment, edit)]).pinned["mr_config_id"]
        for edit in (
            at(f"{container}.image", f"{REPOSITORY}@sha256:{'b' * 64}"),
            at(f"{container}.args.-", "--dashboard"),
            at(f"{container}.env.-", {"name": "REDOUBT_MORE", "value": "1"}),
            at(f"{container}.securityContext.runAsUser", 10002),
            at(f"{container}.volumeMounts.0.mountPath", "/var/tmp"),
            at(f"{container}.volumeDevices.0.devicePath", "/dev/other"),
        )
    }
    assert len(digests) == 6
    assert made("confidential-single").pinned["mr_config_id"] not in digests


def test_clients_demand_the_same_digest(tmp_path: Path) -> None:
    """`redoubt policy build --initdata` computes what the processor measures."""
    of = made("confidential-single")
    assert of.pinned["mr_config_id"] == digest(of.initdata) == hashlib.sha384(of.initdata).hexdigest()
    tee = SoftTee.make()
    facts = Facts("00" * 32, of.pinned["image"], of.pinned["config_sha256"], {"m": "11" * 32}, None)
    said = statement(facts, "22" * 32)
    answer = {"statement": said, "quote": tee.quote(report_data(said)), "event_log": tee.event_log}
    evidence, root, path, policy = (tmp_path / name for name in ("evidence", "root", "initdata.toml", "policy.toml"))
    encoded = {name: base64.b64encode(value).decode() for name, value in answer.items()}
    evidence.write_text(json.dumps({**encoded, "collateral": dict(tee.collateral()), "insecure": True}))
    root.write_bytes(tee.pki.root.public_bytes(serialization.Encoding.PEM))
    path.write_bytes(of.initdata)
    command = ["policy", "build", evidence, "--initdata", path, "--insecure-root", root, "--out", policy]
    assert cli.main([str(each) for each in command]) == 0
    built = tomllib.loads(policy.read_text())
    assert {name: built[name] for name in of.pinned} == of.pinned


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kbs_url": "http://kbs.example.com:8080"}, "needs an address with https"),
        ({"kbs_url": "https://"}, "needs an address with https"),
        ({"kbs_url": f"{KBS}\n"}, "needs an address with https"),
        ({"kbs_url": 'https://kbs"\nname = "other'}, "needs an address with https"),
        ({"kbs_certificate": ""}, "certificate in PEM"),
        ({"kbs_certificate": "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----"}, "without a key"),
        ({"kbs_certificate": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, "certificate in PEM"),
        ({"policy": "package agent_policy # '''"}, "policy.rego has three apostrophes"),
    ],
)
def test_what_it_cannot_hold_is_an_error(change: dict[str, str], reason: str) -> None:
    arguments = {"policy": "package agent_policy\n", "kbs_url": KBS, "kbs_certificate": certificate()}
    assert initdata(**arguments, image_repository=REPOSITORY)
    with pytest.raises(InitdataError, match=reason):
        initdata(**{**arguments, **change}, image_repository=REPOSITORY)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(documents: list[Document]) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(yaml.safe_dump_all(documents)))
        main([str(tmp_path / "out"), "--kbs", KBS, "--kbs-certificate", str(tmp_path / "kbs.crt")])

    with pytest.raises(SystemExit, match=r"kuberay\.confidential: .*No such file.*kbs\.crt"):
        run(rendered("confidential"))
    (tmp_path / "kbs.crt").write_text(certificate())
    with pytest.raises(SystemExit, match="no Deployment and no RayService"):
        run([])
    with pytest.raises(SystemExit, match="a document has no kind"):
        run([{"resources": ["../confidential"]}])
    run(rendered("confidential"))
    assert tomllib.loads(capsys.readouterr().out) == made("confidential").pinned
    assert (tmp_path / "out" / "initdata.toml").read_bytes() == made("confidential").initdata
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "initdata.toml",
        "manifests.yaml",
        "resource-policy.rego",
    ]
