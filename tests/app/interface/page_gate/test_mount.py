"""What the ingress passes on to the page that it mounts."""

from typing import Any

import pytest

from app.interface.ingress import Ingress
from app.interface.planning.limits import Limits
from app.interface.service import HttpSettings, Service
from tests.app.service import INGRESS


def test_the_page_has_the_settings_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: dict[str, Any] = {}
    monkeypatch.setattr("app.interface.page_gate.mount.mount_page", lambda app, **settings: passed.update(settings))
    settings = HttpSettings(Limits(64, 4), max_body_bytes=2048, retry_after_s=7, max_open_requests=16)
    undeployed: Any = Ingress
    plain = undeployed.func_or_class.__wrapped__  # without Serve
    ingress = object.__new__(plain)
    ingress._service = Service({}, lambda: [], settings, INGRESS)
    ingress.__serve_build_asgi_app__()
    assert passed == {"max_open_requests": 16, "retry_after_s": 7, "accounts": None}
