"""The front door as a Ray Serve deployment: it opens the model's tokenizer and connects HTTP to the workers.

What the routes do is in `app.http_api` and below, which know nothing of Ray.
"""

import time
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from app.chat import ChatModel
from app.http_api import build_http_app
from app.http_service import HttpSettings, ServedModel, Service
from app.loopback import keep_on_loopback
from app.planning import Limits
from app.settings import ServiceSettings, read_api_keys
from app.worker_client import WorkerClient


@serve.deployment
@serve.ingress()
class Ingress:
    """Answers HTTP for one model; bound with (settings, handle of the workers)."""

    def __init__(self, settings: ServiceSettings, workers: DeploymentHandle[Any]) -> None:
        """Opens the model's tokenizer, not its weights. Raises ChatModelError naming the wrong file."""
        keep_on_loopback()
        client = WorkerClient(workers)
        chat = ChatModel.load(Path(settings.model.folder), max_context_tokens=settings.engine.max_context_tokens)
        ingress = settings.ingress
        limits = Limits(
            default_max_tokens=ingress.default_max_tokens,
            max_choices=ingress.max_choices,
            on_overflow=settings.model.on_overflow,
        )
        self._service = Service(
            models={settings.model.name: ServedModel(chat, client.generate, created=int(time.time()))},
            workers=client.workers,
            settings=HttpSettings(
                limits=limits,
                max_body_bytes=ingress.max_body_bytes,
                retry_after_s=ingress.retry_after_s,
                api_keys=() if ingress.api_key_file is None else read_api_keys(Path(ingress.api_key_file)),
            ),
        )

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Serve calls this once, after the constructor. The page takes what the routes before it leave."""
        from app.ui import mount_page  # only this process needs Gradio, which takes seconds to import

        app = build_http_app(self._service)
        mount_page(app)
        return app
