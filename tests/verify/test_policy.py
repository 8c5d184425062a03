"""Policies: every field is demanded or named as open, and nothing else is understood."""

import datetime

import pytest

from app.attestation.soft import SoftTee
from redoubt_verify.errors import PolicyError
from redoubt_verify.policy import MEASUREMENTS, UNPINNABLE, describe, parse
from tests.verify.fake_service import policy_text


def test_it_reads_what_it_wrote(tee: SoftTee) -> None:
    policy = parse(policy_text(tee), allow_insecure=True)
    assert policy.measurements["mrtd"] == {tee.report.mr_td}
    assert policy.collateral_max_age_s == 14 * 86400
    assert policy.reverify_after_s == 3600
    assert parse(policy_text(tee, reverify_after="90"), allow_insecure=True).reverify_after_s == 90
    assert policy.unpinned == ()
    assert policy.expires == datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize("name", [name for name in UNPINNABLE if name != "event_log"])
def test_a_missing_field_must_be_named(tee: SoftTee, name: str) -> None:
    with pytest.raises(PolicyError, match=f"{name} is missing"):
        parse(policy_text(tee, drop=name), allow_insecure=True)
    policy = parse(policy_text(tee, drop=name, unpinned=f'["{name}"]'), allow_insecure=True)
    assert policy.unpinned == (name,)
    with pytest.raises(PolicyError, match=f"{name} is given"):
        parse(policy_text(tee, unpinned=f'["{name}"]'), allow_insecure=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mrdt": '"00"'}, "unknown fields: mrdt"),
        ({"unpinned": '["tcb_statuses"]'}, "can't be left out"),
        ({"unpinned": '["expires"]'}, "can't be left out"),
        ({"tcb_statuses": "[]"}, "tcb_statuses"),
        ({"tcb_statuses": '["Revoked"]'}, "tcb_statuses"),
        ({"tcb_statuses": "[1]"}, "tcb_statuses"),
        ({"expires": '"soon"'}, "expires"),
        ({"expires": "12:00:00"}, "expires"),
        ({"mrtd": '"00"'}, "96 hexadecimal digits"),
        ({"mrtd": "[]"}, "mrtd is empty"),
        ({"mrtd": "7"}, "mrtd takes texts"),
        ({"platforms": "[]"}, "platforms is empty"),
        ({"image": '""'}, "image is empty"),
        ({"min_tcb_eval_data_number": "true"}, "whole number"),
        ({"min_tcb_eval_data_number": "-1"}, "whole number"),
        ({"collateral_max_age": '"forever"'}, "collateral_max_age"),
        ({"collateral_max_age": '"0d"'}, "collateral_max_age"),
        ({"reverify_after": "0"}, "reverify_after"),
        ({"reverify_after": "true"}, "reverify_after"),
        ({"reverify_after": "1.5"}, "reverify_after"),
        ({"models": "[]"}, "models"),
        ({"models": '[{name = "a"}]'}, "name and sha256"),
        ({"models": '[{name = "a", sha256 = "AB"}]'}, "64 lower-case"),
        ({"config_sha256": '"zz"'}, "64 hexadecimal digits"),
        ({"insecure_root": "1"}, "insecure_root"),
        ({"insecure_root": '"x"'}, "PEM"),
    ],
)
def test_what_it_does_not_understand_is_an_error(tee: SoftTee, changes: dict[str, str], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        parse(policy_text(tee, **changes), allow_insecure=True)


@pytest.mark.parametrize("text", ["a = " + "9" * 5000, "a = " + "[" * 100_000, "a = "], ids=["number", "deep", "cut"])
def test_what_toml_can_not_be_read_from_is_an_error(text: str) -> None:
    with pytest.raises(PolicyError):
        parse(text)


def test_a_field_may_allow_several_values(tee: SoftTee) -> None:
    other = "ab" * 48
    policy = parse(policy_text(tee, rtmr0=f'["{tee.measured().rtmr0.hex()}", "{other}"]'), allow_insecure=True)
    assert policy.measurements["rtmr0"] == {tee.measured().rtmr0, bytes.fromhex(other)}


def test_describe_says_all_of_it(tee: SoftTee) -> None:
    plain = describe(parse(policy_text(tee, drop="xfam", unpinned='["xfam"]'), allow_insecure=True))
    assert plain["xfam"] is None
    assert set(MEASUREMENTS) < set(plain)
    assert plain["tcb_statuses"] == ["UpToDate"]
