"""The HTTP application with its chat page, for tests of what stands around both."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from app.interface.page_gate.mount import mount_page
from app.messages.outputs import Generate
from tests.app.service import http_app


def app_with_page(generate: Generate) -> Any:
    """Made in a thread: Gradio makes event loops of its own that it never closes, unless one runs."""

    async def made() -> Any:
        app = http_app(generate)
        mount_page(app)
        return app

    with ThreadPoolExecutor(max_workers=1) as thread_of_its_own:
        return thread_of_its_own.submit(asyncio.run, made()).result()
