import inspect

from gradio.queueing import Queue

from app.interface.page import page


def test_gradio_still_takes_how_often_it_looks_for_events() -> None:
    """Private knobs of Gradio's: renamed, they would wake the ingress a thousand times a second again."""
    assert "self.sleep_when_free = " in inspect.getsource(Queue.__init__)
    assert "sleep(self.sleep_when_free)" in inspect.getsource(Queue.start_processing)
    assert "_queue.sleep_when_free = QUEUE_LOOK_S" in inspect.getsource(page.build_page)
    assert "self.progress_update_sleep_when_free = " in inspect.getsource(Queue.__init__)
    assert "sleep(self.progress_update_sleep_when_free)" in inspect.getsource(Queue.start_progress_updates)
    assert "_queue.progress_update_sleep_when_free = PROGRESS_LOOK_S" in inspect.getsource(page.build_page)
