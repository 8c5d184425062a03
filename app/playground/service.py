"""What the playground asks the service besides answers: models, workers and logins."""

import time
from dataclasses import dataclass
from typing import Any

from openai import AsyncOpenAI, AuthenticationError, OpenAIError, Timeout

from app.client import v1
from app.client.login import first_login, log_in

WORKER_COLUMNS = (
    *(
        "worker",
        "models",
        "state",
        "speed",
        "queue",
        "running",
        "waiting",
        "tokens/s",
        "KV pages free",
        "kernels",
        "heartbeat",
    ),
)


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of the service."""

    models: tuple[str, ...] = ()
    """The models that can chat."""
    workers: tuple[tuple[Any, ...], ...] = ()
    trouble: str = ""
    """One line; empty if there is none."""
    needs_key: bool = False


class PlaygroundService:
    """A client of one service, for people with keys of their own or none. Logs no key."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")

    def client(self, key: str) -> AsyncOpenAI:
        """Returns a client with this key; "": without one."""
        timeout = Timeout(None, connect=5)
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key or "none", timeout=timeout, max_retries=0)

    async def state(self, key: str) -> ServiceState:
        """Asks for models and workers; returns none if that fails."""
        async with self.client(key) as client:
            try:
                listed = await client.models.list()
                table = await client.get("/workers", cast_to=object, options={"timeout": 10})
            except AuthenticationError:
                return ServiceState(trouble="This service asks for an API key or a login.", needs_key=True)
            except OpenAIError as error:
                return ServiceState(trouble=v1.reason(error))
        models = tuple(one.id for one in listed.data if "chat" in getattr(one, "capabilities", ["chat"]))
        rows: Any = table
        return ServiceState(
            models, tuple(_row(row) for row in rows["data"]), "" if models else "No model here can chat."
        )

    def log_in(self, name: str, password: str) -> tuple[str, str]:
        """Returns a session token, or "" and the reason."""
        client = v1.connect(self.url, None)
        try:
            token = log_in(client, name, password).token
            if first_login(v1.connect(self.url, token)) is not None:
                return "", f"Choose a password of your own first, at {self.url}/login."
        except OpenAIError as error:
            return "", v1.reason(error)
        return token, ""


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    age_s = time.time() - row["last_heart_beat"]
    return (
        row["worker_id"][:8],
        ", ".join(row["model_names"]),
        row["state"],
        round(row["speed"], 1),
        row["queue_length"],
        row["running"],
        row["waiting"],
        round(row["generated_tokens_per_s"], 1),
        f"{row['kv_pages_free']} of {row['kv_pages']}",
        row["tier"],
        f"{max(0.0, age_s):.0f} s ago" if row["last_heart_beat"] else "never",
    )
