"""`bench.verify_cost` prints what it measured."""

import json

import pytest

from bench import verify_cost


@pytest.mark.parametrize("version", ["4", "5"])
def test_it_prints_one_object(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify_cost.main(["--count", "20", "--quote-version", version]) == 0
    result = json.loads(capsys.readouterr().out)
    for name in ("verdict", "new_connection_verified", "warm_request_verified", "warm_request_plain"):
        assert 0 < result[name]["least"] <= result[name]["median"] <= result[name]["p95"]
