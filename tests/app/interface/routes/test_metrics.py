import platform
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.interface.http.metrics import Metrics
from app.messages.failures import InvalidRequestError
from app.messages.outputs import Answer, Loss, TokenDelta
from app.messages.requests import GenerateRequest, Priority
from tests.app.fake_worker import FakeWorker
from tests.app.service import WORKER, http_app, http_client, never
from tests.app.tiny_model import reference_tokenizer

TOKENS = tuple(reference_tokenizer().encode("one two three").ids)


def script(request: GenerateRequest) -> list[TokenDelta | Exception]:
    if request.max_new_tokens == 5:
        return [TokenDelta(TOKENS[:1]), ZeroDivisionError("secret words")]
    return [TokenDelta(TOKENS[:1], None, 3), TokenDelta(TOKENS[1:3]), TokenDelta(TOKENS[3:4], "length")]


Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(text: str) -> Series:
    """The series without their ingress label."""
    return {
        (sample.name, tuple(sorted(sample.labels.items() - {("ingress", "i1")}))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Series, name: str, **labels: str) -> float:
    return found[(name, tuple(sorted(labels.items())))]


async def test_what_is_counted() -> None:
    gone = replace(WORKER, worker_id="w2", state="gone", check_heart_beat=False)
    async with http_client(http_app(FakeWorker(script).generate, workers=(WORKER, gone))) as client:
        body: dict[str, Any] = {"model": "tiny", "prompt": [4] * 7, "user": "secret words"}
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        assert (await client.post("/v1/completions", json=body | {"stream": True, "n": 2})).status_code == 200
        assert (await client.post("/v1/completions", json=body | {"max_tokens": 5})).status_code == 500
        assert (await client.post("/v1/completions", json=body | {"n": 0})).status_code == 400
        assert (await client.get("/v1/models/secret words")).status_code == 404
        assert (await client.get("/v1/secret words")).status_code == 404
        response = await client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "secret" not in response.text
    found = series(response.text)
    posted = {"method": "POST", "route": "/v1/completions"}
    for status, count in (("200", 2), ("500", 1), ("400", 1)):
        assert value(found, "redoubt_http_requests_total", **posted, status=status) == count
    for reason, count in (("length", 3), ("error", 1)):
        assert value(found, "redoubt_sequences_total", model="tiny", reason=reason) == count
    assert value(found, "redoubt_prompt_tokens_total", model="tiny") == 4 * 7
    assert value(found, "redoubt_cached_prompt_tokens_total", model="tiny") == 3 * 3
    assert value(found, "redoubt_generated_tokens_total", model="tiny") == 3 * 4 + 1
    assert value(found, "redoubt_time_to_first_token_seconds_count", model="tiny") == 4
    assert value(found, "redoubt_inter_token_seconds_count", model="tiny") == 3 * 2
    workers = {"up": 1, "requests_running": 0, "kv_pages": 8, "kv_pages_used": 2, "kv_pages_cached": 5}
    workers |= {"requests_running_limit": 2, "requests_waiting_limit": 4, "requests_batch": 3, "asleep": 0}
    for name, expected in workers.items():
        assert value(found, f"redoubt_worker_{name}", worker="w1", model="tiny") == expected
    for name, expected in {"computed_tokens": 100, "cached_tokens": 30, "preemptions": 2}.items():
        assert value(found, f"redoubt_worker_{name}_total", worker="w1", model="tiny") == expected
    assert value(found, "redoubt_worker_drafted_tokens_total", worker="w1", model="tiny", kind="model") == 7
    assert value(found, "redoubt_worker_right_drafted_tokens_total", worker="w1", model="tiny", kind="lookup") == 2
    assert value(found, "redoubt_worker_queue_seconds_count", worker="w1", model="tiny") == 20
    assert value(found, "redoubt_worker_queue_seconds_sum", worker="w1", model="tiny") == 1.5
    of_gone = {name: sample for (name, labels), sample in found.items() if ("worker", "w2") in labels}
    assert of_gone == {"redoubt_worker_up": 0}, "a lost worker is seen as lost, and nothing else of it"


async def test_a_model_without_workers_is_zero() -> None:
    """The model has just lost its workers, or had none since the ingress started."""
    alive, stale = replace(WORKER, model_names=("other",)), replace(WORKER, state="stale", check_heart_beat=False)
    workers = (alive, stale, replace(alive, worker_id="w3", state="gone", check_heart_beat=False))
    for rows, up in ((workers, {"tiny": 0, "other": 1}), ((), {"tiny": 0}), ((WORKER,), {"tiny": 1})):
        async with http_client(http_app(never, workers=rows)) as client:
            found = series((await client.get("/metrics")).text)
        assert up == {dict(labels)["model"]: n for (name, labels), n in found.items() if name == "redoubt_model_up"}
        if rows == workers:
            states = {("other", "alive"): 1, ("other", "gone"): 1, ("tiny", "stale"): 1, ("tiny", "alive"): 0}
            for (model, state), count in states.items():
                assert value(found, "redoubt_model_workers", model=model, state=state) == count


async def test_each_way_of_going_on_elsewhere_is_counted() -> None:
    def lossy(request: GenerateRequest) -> list[TokenDelta | Exception]:
        return [
            TokenDelta(TOKENS[:1]),
            TokenDelta(TOKENS[1:2], losses=(Loss.LOST, Loss.MOVED)),
            TokenDelta(TOKENS[2:3], "length", losses=(Loss.LOST,)),
        ]

    async with http_client(http_app(FakeWorker(lossy).generate)) as client:
        await client.post("/v1/completions", json={"model": "tiny", "prompt": "hi"})
        found = series((await client.get("/metrics")).text)
    for loss, count in (("crashed", 0), ("lost", 2), ("moved", 1)):
        assert value(found, "redoubt_requests_resumed_total", model="tiny", loss=loss) == count


async def test_an_ingress_says_what_it_is_and_how_full() -> None:
    async with http_client(http_app(never, max_ongoing_requests=7)) as client:
        text = (await client.get("/metrics")).text
    found = series(text)
    assert value(found, "redoubt_open_requests") == 1, "this one"
    assert value(found, "redoubt_open_requests_limit") == 7
    assert value(found, "redoubt_build_info", version="1.2.3", python=platform.python_version()) == 1
    for line in text.splitlines():
        assert line.startswith(("#", "redoubt_worker_", "redoubt_model_")) or 'ingress="i1"' in line, line


async def test_a_sequence_that_a_stop_string_ended() -> None:
    async with http_client(http_app(FakeWorker(script).generate)) as client:
        await client.post("/v1/completions", json={"model": "tiny", "prompt": "hi", "stop": "o"})
        found = series((await client.get("/metrics")).text)
    assert value(found, "redoubt_sequences_total", model="tiny", reason="closed") == 1


async def test_all_beams_are_counted_and_none_is_a_first_token() -> None:
    beams = [TokenDelta(TOKENS[:2], "stop", more=(Answer(TOKENS[:3], "stop"), Answer(TOKENS[:1], "length")))]
    async with http_client(http_app(FakeWorker(lambda _: beams).generate)) as client:
        body: dict[str, Any] = {"model": "tiny", "prompt": "hi", "num_beams": 3, "n": 3}
        answer = (await client.post("/v1/completions", json=body)).json()
        found = series((await client.get("/metrics")).text)
    assert value(found, "redoubt_generated_tokens_total", model="tiny") == answer["usage"]["completion_tokens"] == 6
    assert value(found, "redoubt_time_to_first_token_seconds_count", model="tiny") == 0


def test_batches_are_counted_apart_and_not_timed() -> None:
    metrics = Metrics(workers=tuple, ingress_id="i1")
    request = GenerateRequest("r", (1, 2), 9, tenant=b"", priority=Priority.BATCH)
    for error in (None, ValueError(), InvalidRequestError()):
        observer = metrics.counting("tiny")(request)
        observer.saw(TokenDelta((1, 2)))
        observer.saw(TokenDelta((3,), "length"))
        observer.ended(error)
    found = series(metrics.text().decode())
    counts = {"redoubt_batch_generated_tokens_total": 9, "redoubt_generated_tokens_total": 0}
    counts |= {"redoubt_time_to_first_token_seconds_count": 0, "redoubt_prompt_tokens_total": 0}
    for name, count in counts.items():
        assert value(found, name, model="tiny") == count
    for reason, count in {"length": 1, "error": 1, "stop": 0}.items():
        assert value(found, "redoubt_batch_sequences_total", model="tiny", reason=reason) == count


async def test_labels_are_a_closed_set() -> None:
    """The number of series does not grow, whatever is requested."""
    async with http_client(http_app(never)) as client:
        for i in range(20):
            await client.get(f"/v1/models/{i}")
            await client.post(f"/v1/{i}/x", json={"model": f"m{i}"})
        text = (await client.get("/metrics")).text
    routes = {dict(labels)["route"] for name, labels in series(text) if name == "redoubt_http_requests_total"}
    assert routes == {"/v1/models/{name:path}", "/v1/{path:path}"}


async def test_a_method_of_the_clients_own_is_no_label() -> None:
    app = http_app(never, max_ongoing_requests=0)
    async with http_client(app) as client:
        assert (await client.request("SECRET", "/v1/models")).status_code == 503
    text = app.state.metrics.text().decode()
    assert 'method="other",route="any",status="503"' in text
    assert "SECRET" not in text


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("wrong", 401), ("key", 200)])
async def test_keys(key: str | None, status: int) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with http_client(http_app(never, api_keys=("key",))) as client:
        assert (await client.get("/metrics", headers=headers)).status_code == status


async def test_two_services_in_one_process_count_apart() -> None:
    first, second = http_app(never), http_app(never)
    async with http_client(first) as client:
        await client.get("/v1/models")
    async with http_client(second) as client:
        assert "redoubt_http_requests_total{" not in (await client.get("/metrics")).text
