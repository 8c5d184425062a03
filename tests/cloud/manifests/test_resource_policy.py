"""The KBS releases keys to the guests of one overlay, and to nobody else."""

from typing import Any

import pytest

from kuberay.confidential.command import resource_policy
from tests.cloud.manifests.confidential import OVERLAYS, made
from tests.cloud.manifests.edits import DELETE, Edit, at, edited
from tests.cloud.manifests.rego import answer

DIGEST = "ab" * 48
MODEL = "redoubt/model/smollm2-135m-instruct"
RESOURCES = [MODEL, "redoubt/image/key"]
EVIDENCE = "ear.veraison.annotated-evidence"
RULE = "data.policy.allow"


def claims(digest: str = DIGEST) -> Any:
    """What Trustee's attestation service says of a guest, as far as the policy reads it."""
    quote = {"body": {"mr_config_id": digest, "mr_td": "00" * 48}}
    evidence = {"tdx": {"quote": quote, "td_attributes": {"debug": False}}, "init_data": digest}
    return {"submods": {"cpu0": {"ear.status": "affirming", EVIDENCE: evidence}}}


def asked(path: str, plugin: str = "resource", query: dict[str, str] | None = None) -> Any:
    """What the KBS says of a request."""
    return {"plugin": plugin, "resource-path": path.split("/"), "query": query or {}}


def releases(token: Any, request: Any) -> bool:
    return answer(resource_policy(DIGEST, RESOURCES), RULE, token, request)


@pytest.mark.parametrize("path", RESOURCES)
def test_a_guest_gets_what_its_initdata_is_for(path: str) -> None:
    assert releases(claims(), asked(path))


@pytest.mark.parametrize(
    "path",
    [
        "redoubt/model/other",
        "redoubt/keys/ray-token",
        "redoubt/model",
        f"{MODEL}/more",
        f"other/{MODEL}",
        "default/image/key",
        "",
    ],
)
def test_other_resources_are_kept(path: str) -> None:
    assert not releases(claims(), asked(path))


def in_evidence(edit: Edit) -> Edit:
    return lambda token: edit(token["submods"]["cpu0"][EVIDENCE])


def status(value: str) -> Edit:
    return lambda token: token["submods"]["cpu0"].update({"ear.status": value})


@pytest.mark.parametrize(
    "edit",
    [
        status("warning"),
        status("contraindicated"),
        status("none"),
        lambda token: token["submods"]["cpu0"].pop("ear.status"),
        at("submods.gpu0", {"ear.status": "warning"}),
        at("submods", {}),
        at("submods", DELETE),
        in_evidence(at("tdx.quote.body.mr_config_id", "cd" * 48)),
        in_evidence(at("tdx.quote.body.mr_config_id", DIGEST[:-2])),
        in_evidence(at("tdx.quote.body.mr_config_id", "00" * 48)),
        in_evidence(at("tdx.quote.body.mr_config_id", DELETE)),
        in_evidence(at("tdx.td_attributes.debug", True)),
        in_evidence(at("tdx.td_attributes", {})),
        in_evidence(at("tdx", DELETE)),
        in_evidence(lambda evidence: evidence.update({"sample": evidence.pop("tdx")})),
    ],
)
def test_other_guests_get_nothing(edit: Edit) -> None:
    token = edited(claims(), edit)
    assert token != claims()
    assert not any(releases(token, asked(path)) for path in RESOURCES)


def test_other_plugins_are_closed() -> None:
    assert not releases(claims(), asked(MODEL, plugin="pkcs11"))
    assert not releases(claims(), asked(MODEL, query={"version": "1"}))


def test_without_a_deployment_nothing_is_released() -> None:
    assert not answer(resource_policy("", []), RULE, claims(), asked(MODEL))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_overlay_gets_its_keys(overlay: str) -> None:
    token = claims(made(overlay).pinned["mr_config_id"].upper())
    expected = {MODEL, "redoubt/image/key"} | ({"redoubt/keys/ray-token"} if overlay == "confidential" else set())
    all_paths = {MODEL, "redoubt/image/key", "redoubt/keys/ray-token", "redoubt/keys/memory"}
    policy = made(overlay).resource_policy
    assert {path for path in all_paths if answer(policy, RULE, token, asked(path))} == expected
    assert not any(answer(policy, RULE, claims(), asked(path)) for path in all_paths)
