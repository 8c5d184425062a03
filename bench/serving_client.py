"""A process of HTTP clients: sends completions, each at its time, and records when their events arrive.

Reads a JSON job from stdin and prints a JSON report. Standard library only, with as little work per event as possible,
because the service runs on the same machine. Knows only the service's HTTP address.
"""

import asyncio
import json
import ssl
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Order:
    at_s: float
    """When to send it, in seconds from the start."""
    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of an order. Times are seconds from the start."""

    sent_s: float
    first_s: float
    """When the first event with text arrived: the first token, unless that is only part of a character."""
    end_s: float
    events: int
    tokens: int
    """Output tokens, as the service counts them."""
    error: str = ""


async def send(
    host: str, port: int, model: str, order: Order, start_s: float, tls: ssl.SSLContext | None = None
) -> Receipt:
    """Sends one streamed completion on its own connection."""
    body = json.dumps(
        {
            "model": model,
            "prompt": order.prompt,
            "max_tokens": order.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    await asyncio.sleep(max(0.0, start_s + order.at_s - time.perf_counter()))
    sent_s = time.perf_counter() - start_s
    first_s, events, tokens, error = 0.0, 0, 0, ""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20, ssl=tls)
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        status = (await reader.readline()).decode().strip()
        if " 200 " not in f"{status} ":
            error = status
        while line := await reader.readline():
            if not line.startswith(b"data: {"):
                error = error or (line.decode() if line.startswith(b'{"error"') else "")
                continue
            if b'"choices":[]' in line:
                tokens = json.loads(line[6:])["usage"]["completion_tokens"]
            elif b'"error"' in line[:20]:
                error = line.decode()
            else:
                events += 1
                first_s = first_s or time.perf_counter() - start_s
    finally:
        writer.close()
    return Receipt(sent_s, first_s, time.perf_counter() - start_s, events, tokens, error)


async def send_all(job: dict[str, Any]) -> list[Receipt]:
    """Sends all orders of a job concurrently."""
    start_s = time.perf_counter()
    orders = [Order(**order) for order in job["orders"]]
    tls = _any_certificate() if job.get("tls") else None
    sent = (send(job["host"], job["port"], job["model"], order, start_s, tls) for order in orders)
    return list(await asyncio.gather(*sent))


def _any_certificate() -> ssl.SSLContext:
    """Attested services show a certificate that nobody signed; who measures time does not verify it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


if __name__ == "__main__":
    print(json.dumps([asdict(receipt) for receipt in asyncio.run(send_all(json.load(sys.stdin)))]))
