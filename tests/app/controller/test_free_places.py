from app.controller.free_places import LONGEST_S, FreePlaces


def test_each_refused_client_is_promised_a_place_of_its_own() -> None:
    places = FreePlaces()
    for second in range(0, 40, 2):  # a place every two seconds
        places.ended(float(second))
    promised = [places.retry_after_s(38.0, 96) for _ in range(5)]
    assert promised == [2, 4, 6, 8, 10]
    assert places.retry_after_s(48.0, 96) == 3  # the time has passed; and a silence of ten seconds counts


def test_a_promise_is_between_a_second_and_a_minute() -> None:
    assert FreePlaces().retry_after_s(5.0, 96) == 1  # nothing is known
    places = FreePlaces()
    for step in range(10):
        places.ended(step / 1000)
    assert [places.retry_after_s(0.01, 96) for _ in range(3)] == [1, 1, 1]
    slow = FreePlaces()
    slow.ended(0.0)
    slow.ended(1000.0)
    assert [slow.retry_after_s(1000.0, 96) for _ in range(3)] == [LONGEST_S] * 3


def test_clients_that_do_not_wait_do_not_delay_others_for_long() -> None:
    places = FreePlaces()
    for second in range(32):
        places.ended(float(second))
    promised = [places.retry_after_s(31.0, places=8) for _ in range(1000)]
    assert max(promised) == 8


def test_the_time_in_which_nobody_was_here_does_not_count() -> None:
    places = FreePlaces()
    for second in range(5):
        places.ended(float(second))
    places.restart()
    for step in range(10):
        places.ended(3600 + step / 10)
    assert places.retry_after_s(3601.0, 96) == 1
