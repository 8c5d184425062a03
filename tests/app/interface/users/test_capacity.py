"""`/v1/admin/capacity`: the calculator over what workers report, for administrators only."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.interface.request.errors import ApiError
from app.interface.users.routes import capacity
from app.interface.users.routes.capacity import _computed
from app.messages.capacity import WorkerCapacity
from app.messages.workers import WorkerRow
from tests.app.fake_worker import FakeWorker, deltas
from tests.app.interface.users.here import Site
from tests.app.service import WORKER, http_app, http_client

CAPACITY = WorkerCapacity(
    layers=22,
    hidden=2048,
    heads=32,
    kv_heads=4,
    head_dim=64,
    layer_weights=968_884_224,
    layer_bytes=514_719_744,
    head_weights=65_536_000,
    head_bytes=34_816_000,
    other_bytes=67_584_000,
    kv_type="int16",
    kv_tokens=50_000,
    vendor="amd",
    prompt_tokens=128,
    prompt_s=0.02,
    token_s=0.003,
    memory_left_bytes=8 << 30,
)
FAST = replace(WORKER, max_context_tokens=4096, tier="avx512_vnni", max_running=64, capacity=CAPACITY)
SLOW = replace(FAST, worker_id="w2", speed=1.0, capacity=replace(CAPACITY, prompt_s=0.8, token_s=0.1))

SHORT_RUNS = """
import runpy
from app.capacity import simulation
simulation.REQUESTS = 200
runpy.run_module("app.capacity", run_name="__main__")
"""


@pytest.fixture
def asking(make_site: Callable[..., Site]) -> Callable[..., Any]:
    worker = FakeWorker(lambda _: deltas([5]))
    site = make_site(worker)
    site.add("root", role="admin")
    site.add("ann")

    async def ask(rows: tuple[WorkerRow, ...], query: str = "", name: str = "root") -> Any:
        await site.client.aclose()
        site.client = http_client(http_app(worker.generate, workers=lambda: rows, accounts=site.gate))
        return await site.ask("GET", f"/v1/admin/capacity{query}", await site.log_in(name))

    return ask


async def test_a_fast_worker_serves_more_than_a_slow_one_which_counts(
    asking: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "_computed", partial(_computed, command=(sys.executable, "-c", SHORT_RUNS)))
    (fast,) = (await asking((FAST,), "?users=20")).json()["data"]
    assert (fast["name"], fast["workers"], fast["serves"]) == ("tiny", 1, True)
    assert fast["users"] >= 20
    assert 4000 < fast["prompt_tokens_per_s"] < 9000
    assert 200 < fast["answer_tokens_per_s"] < 333
    assert any(candidate["serves"] for candidate in fast["candidates"])
    answer = (await asking((FAST, SLOW), "?users=20")).json()
    (both,) = answer["data"]
    assert answer["users"] == 20
    assert both["workers"] == 2
    assert both["users"] < fast["users"]
    assert both["answer_tokens_per_s"] < 10.1


async def test_workers_that_are_silent_or_have_not_measured_do_not_count(asking: Callable[..., Any]) -> None:
    for row in (WORKER, replace(FAST, check_heart_beat=False, state="stale")):
        answer = await asking((row,))
        assert (answer.status_code, answer.json()) == (200, {"object": "list", "users": 10, "data": []})


@pytest.mark.parametrize("users", ["0", "-1", "1.5", "x", "1000001", "99999999999", "١"])
async def test_nonsense_users_are_refused(asking: Callable[..., Any], users: str) -> None:
    answer = await asking((FAST,), f"?users={users}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "users")


async def test_a_calculation_that_takes_too_long_or_fails_is_503_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    sleep = (sys.executable, "-c", "import time; time.sleep(60)")
    with pytest.raises(ApiError) as caught:
        await _computed({}, sleep, timeout_s=0.2)
    assert (caught.value.status, caught.value.message) == (
        503, "The machine is too busy to compute this; use `redoubt plan`."
    )  # fmt: skip
    with pytest.raises(ApiError) as caught:
        await _computed({}, (sys.executable, "-c", "raise SystemExit('no such share')"))
    assert caught.value.status == 503
    assert "no such share" in caplog.text


async def test_a_request_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    program = f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    asked = asyncio.create_task(_computed({}, (sys.executable, "-c", program)))
    while not (started.exists() and started.read_text()):
        await asyncio.sleep(0.01)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert not Path(f"/proc/{started.read_text()}").exists()


async def test_only_administrators_may_ask(asking: Callable[..., Any]) -> None:
    assert (await asking((FAST,), name="ann")).status_code == 403
