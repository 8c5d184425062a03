from dataclasses import replace

from app.controller.worker_table import WorkerTable
from app.messages.model_card import ModelCard
from app.messages.workers import WorkerFacts, WorkerReport

FACTS = WorkerFacts(
    node="a",
    pid=7,
    model=ModelCard("m", "/models/m", None, "refuse"),
    speed=100.0,
    cpus=(0, 1),
    numa_node=0,
    memory_bound=True,
    max_context_tokens=2048,
    tier="avx2",
    arithmetic="avx2 int8",
    ready_since=3,
    max_running=2,
    max_waiting=4,
    max_saved_bytes=None,
)


def report(heart_beat: float, running: int = 0, waiting: int = 0) -> WorkerReport:
    return WorkerReport(heart_beat=heart_beat, running=running, waiting=waiting, kv_pages=8, kv_pages_free=4)


def table() -> WorkerTable:
    return WorkerTable(expiration_s=10.0, forget_after_s=60.0)


def test_a_worker_is_alive_while_its_heartbeat_changes() -> None:
    workers = table()
    workers.update({"w": (FACTS, report(1.0))}, now_s=100.0)
    workers.update({"w": (FACTS, report(2.0))}, now_s=108.0)
    assert workers.is_alive("w", 118.0)
    assert not workers.is_alive("w", 118.1)


def test_the_same_heartbeat_again_is_no_report() -> None:
    workers = table()
    for now_s in (100.0, 105.0, 110.0, 115.0):
        workers.update({"w": (FACTS, report(1.0))}, now_s)
    assert not workers.is_alive("w", 115.0)
    (row,) = workers.rows({"w": 3}, 115.0)
    assert (row.state, row.check_heart_beat, row.last_heart_beat, row.queue_length) == ("stale", False, 1.0, 3)


def test_a_stale_worker_is_taken_back_when_it_reports() -> None:
    workers = table()
    workers.update({"w": (FACTS, report(1.0))}, 100.0)
    assert not workers.is_alive("w", 120.0)
    workers.update({"w": (FACTS, report(1.5))}, 121.0)
    assert workers.is_alive("w", 121.0)


def test_an_answer_is_a_report_too() -> None:
    workers = table()
    workers.update({"w": (FACTS, None)}, 100.0)
    workers.heard("w", 120.0)
    workers.heard("unknown", 120.0)
    assert workers.is_alive("w", 130.0)


def test_clocks_that_disagree_do_not_matter() -> None:
    workers = table()
    workers.update({"w": (FACTS, report(5e9))}, 100.0)
    workers.update({"w": (FACTS, report(1.0))}, 109.0)  # the worker's clock was set back
    assert workers.is_alive("w", 119.0)


def test_a_worker_that_is_gone_stays_visible_for_a_while() -> None:
    workers = table()
    workers.update({"w": (FACTS, report(1.0)), "v": (FACTS, report(1.0))}, 100.0)
    workers.update({"v": (FACTS, report(2.0))}, 101.0)
    assert [(row.worker_id, row.state) for row in workers.rows({"w": 9}, 101.0)] == [("v", "alive"), ("w", "gone")]
    assert workers.rows({"w": 9}, 101.0)[1].queue_length == 0
    workers.update({"v": (FACTS, report(3.0))}, 170.1)
    assert [row.worker_id for row in workers.rows({}, 170.1)] == ["v"]


def test_a_dead_process_gets_nothing_even_before_the_controller_knows() -> None:
    workers = table()
    workers.update({"w": (FACTS, report(1.0))}, 100.0)
    workers.lost("w")
    assert not workers.is_alive("w", 100.0)


def test_what_routing_asks() -> None:
    workers = table()
    workers.update({"w": (replace(FACTS, speed=42.0), report(1.0, running=2, waiting=3))}, 0.0)
    assert workers.speed("w") == 42.0


def test_places_are_those_of_workers_that_may_be_alive() -> None:
    workers = table()
    assert (workers.places(), workers.has_present()) == (0, False)
    workers.update({"w": (FACTS, report(1.0)), "v": (replace(FACTS, max_waiting=0), report(1.0))}, 0.0)
    assert workers.places() == 8
    workers.update({"w": (FACTS, report(2.0)), "v": (replace(FACTS, max_waiting=0), report(1.0))}, 9.0)
    assert not workers.is_alive("v", 20.0)
    assert (workers.places(), workers.has_present()) == (8, True), "they are silent, and may answer if they are asked"
    workers.update({}, 21.0)
    assert not workers.has_present()


def test_what_is_known_needs_no_parsing_again() -> None:
    workers = table()
    assert workers.known("w") == (None, None)
    first = report(1.0)
    assert workers.update({"w": (FACTS, first)}, 0.0) == {"w"}
    assert workers.update({"w": (FACTS, first)}, 1.0) == set()
    assert workers.known("w") == (FACTS, first)


def test_a_row_has_the_workers_places_and_rate() -> None:
    workers = table()
    workers.update(
        {"w": (FACTS, replace(report(1.0), generated_tokens_per_s=7.5, admitted=3, queued_s=0.5, saved_bytes=9))}, 0.0
    )
    (row,) = workers.rows({}, 0.0)
    assert (row.tier, row.ready_since, row.max_running, row.max_waiting) == ("avx2", 3, 2, 4)
    assert (row.generated_tokens_per_s, row.saved_bytes, row.max_saved_bytes) == (7.5, 9, None)
    assert (row.admitted, row.queued_s) == (3, 0.5)


def test_facts_and_reports_travel_as_json_types() -> None:
    assert WorkerFacts.from_wire(FACTS.to_wire()) == FACTS
    assert WorkerReport.from_wire(report(1.0, 2, 3).to_wire()) == report(1.0, 2, 3)


def test_cards_come_in_the_order_of_the_workers() -> None:
    workers = table()
    old, new = (replace(FACTS, model=replace(FACTS.model, identity=identity)) for identity in ("old", "new"))
    workers.update({"z": (old, None)}, now_s=100.0)
    workers.update({"a": (new, None), "z": (old, None)}, now_s=101.0)
    assert [card.identity for card in workers.cards(102.0)] == ["old", "new"]
    workers.update({"a": (new, None)}, now_s=103.0)
    assert [card.identity for card in workers.cards(103.0)] == ["new"]
