import random

from app.controller.queue_lengths import QueueLengths


def test_a_request_counts_from_the_choice_to_its_end_once() -> None:
    queues = QueueLengths()
    queues.reserve("w", 0.0)
    assert queues.of("w", 0.0) == 1
    queues.sent("w")
    assert queues.of("w", 0.0) == 1
    queues.counted("w", 4)  # three of other routers
    assert queues.of("w", 0.0) == 4
    queues.ended("w")
    assert queues.of("w", 0.0) == 3
    queues.ended("w")  # more than were sent
    queues.completed("w")
    assert queues.of("w", 0.0) == 3


def test_a_reservation_that_is_never_sent_expires() -> None:
    queues = QueueLengths()
    queues.reserve("w", 0.0)
    assert [queues.of("w", now_s) for now_s in (0.9, 1.0)] == [1, 0]
    queues.reserve("w", 5.0)
    queues.release("w")
    assert queues.of("w", 5.0) == 0


def test_a_reservation_that_is_never_sent_is_not_renewed_by_others() -> None:
    queues = QueueLengths()
    queues.reserve("w", 0.0)  # of a request that is cancelled
    for tenth in range(1, 20):
        queues.reserve("w", tenth / 10)
        queues.release("w")
    assert queues.of("w", 1.9) == 0
    queues.reserve("w", 2.0)
    queues.keep({})
    assert queues.of("w", 2.0) == 0


def test_a_request_that_is_sent_back_changes_nothing() -> None:
    queues = QueueLengths()
    for _ in range(3):
        queues.sent("w")
    queues.counted("w", 6)
    queues.sent("w")
    queues.counted("w", 6)  # it is full, and these are six without the new one
    queues.completed("w")
    assert queues.of("w", 0.0) == 6
    queues.freed("w")  # Serve may tell this before the other one
    queues.completed("w")
    assert queues.of("w", 0.0) == 5


def test_a_report_raises_and_lowers_what_others_have_there() -> None:
    queues = QueueLengths()
    queues.sent("w")
    for reported in (6, 2, 9, 0):
        queues.reported("w", reported)
        assert queues.of("w", 0.0) == max(reported, 1)


def test_a_report_from_before_an_end_is_not_taken_for_another_routers_request() -> None:
    queues = QueueLengths()
    for _ in range(3):
        queues.sent("w")
    queues.reported("w", 3)
    queues.ended("w")
    queues.ended("w")
    queues.reported("w", 3)  # made before the two had ended
    assert queues.of("w", 0.0) == 1
    queues.reported("w", 3)  # reports may be late by more than their period
    assert queues.of("w", 0.0) == 1
    queues.reported("w", 3)  # and this one was made after it: other routers have sent two
    assert queues.of("w", 0.0) == 3


def test_one_router_alone_always_knows_the_length_exactly() -> None:
    """Whatever it sends and sees end, with reports that are late by anything up to their period."""
    rng = random.Random(3)
    queues = QueueLengths()
    length, made = 0, 0
    for step in range(5_000):
        if step % 20 == 19:
            queues.reported("w", made)
        elif step % 20 == rng.randrange(20):
            made = length
        if length and rng.random() < 0.5:
            length -= 1
            queues.ended("w")
        else:
            length += 1
            queues.sent("w")
        if step % 20 == 0:
            made = length
        assert queues.of("w", 0.0) == length


def test_a_worker_that_is_gone_is_forgotten() -> None:
    queues = QueueLengths()
    queues.counted("w", 5)
    queues.keep({"v": None})
    assert queues.of("w", 0.0) == 0


def test_a_router_without_others_sees_all() -> None:
    queues = QueueLengths()
    for admitted in range(20):
        queues.sent("w")
        queues.reported("w", admitted + 1, admitted + 1)
        assert queues.unseen(["w"]) == 0.0


def test_what_began_while_reports_were_lost_is_not_taken_for_what_begins_between_two() -> None:
    queues = QueueLengths(report_period_s=1.0)
    queues.reported("w", 5, 100, 1000.0)
    queues.reported("w", 5, 110, 1001.0)
    assert queues.unseen(["w"]) == 10
    queues.reported("w", 5, 710, 1061.0)  # still ten a second
    assert queues.unseen(["w"]) == 20
    queues.reported("w", 5, 720, 900.0)  # its clock was set
    assert queues.unseen(["w"]) == 10


def test_an_answer_that_counts_an_ended_request_makes_no_other_router() -> None:
    queues = QueueLengths()
    queues.reported("w", 0, 10)
    queues.sent("w")
    queues.sent("w")
    queues.ended("w")
    queues.counted("w", 2)  # the worker has not noticed the end
    queues.reported("w", 1, 12)
    queues.counted("w", 2)
    assert queues.unseen(["w"]) == 0.0


def test_what_others_send_is_their_share_of_what_began() -> None:
    queues = QueueLengths()
    queues.sent("w")
    queues.reported("w", 4, 100)
    assert queues.unseen(["w"]) == 0.0  # nothing is known yet of how many come
    queues.reported("w", 4, 108)
    queues.reported("v", 0, 7)
    queues.reported("old", 9, 100)
    queues.reported("old", 9, 200)
    assert queues.unseen(["w", "v"]) == 8 * 3 / 4, "the request may not go to the third worker"
    queues.reported("w", 4, 2)  # it was started anew
    assert queues.unseen(["w"]) == 0.0
    queues.reported("w", 4, 6)
    assert queues.unseen(["w"]) > 0.0
    queues.keep({"v"})
    assert queues.unseen(["w"]) == 0.0
