"""The OpenAPI document as a web page: plain HTML, no script, nothing loaded from anywhere."""

from typing import Any

import jinja2
import orjson
from markupsafe import Markup, escape

HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Redoubt's API</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code { font-family: ui-monospace, monospace; font-size: 0.9em; }
table { border-collapse: collapse; width: 100%; }
td, th { border-top: 1px solid #8885; padding: 0.25rem 0.5rem; text-align: left; vertical-align: top; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } a { color: #8cf; } }
</style></head><body>
<h1>{{ document.info.title }}</h1>
<p>{{ document.info.description }} The same for machines: <a href="openapi.json">openapi.json</a>.</p>
{% for path, methods in document.paths.items() %}{% for method, operation in methods.items() %}
<h2><code>{{ method | upper }} {{ path }}</code></h2>
<p>{{ operation.summary }}</p>
{% for asked in operation.parameters or [] if asked["in"] == "query" %}
<p><code>?{{ asked.name }}=</code> {{ asked.description }}</p>
{% endfor %}
{% if operation.requestBody %}
{% for media, content in operation.requestBody.content.items() %}
<p>Request: {% if media != "application/json" %}<code>{{ media }}</code> {% endif %}{{ link(content.schema) }}</p>
{% endfor %}
{% endif %}
<table>{% for status, answer in operation.responses.items() %}
<tr><td>{{ status }}</td><td>{{ answer.description }}</td><td>
{% for media, content in answer.content.items() %}<code>{{ media }}</code> {{ link(content.schema) }}<br>{% endfor %}
</td></tr>
{% endfor %}</table>
{% endfor %}{% endfor %}
<h1>Objects</h1>
{% for name, schema in document.components.schemas.items() %}
<h2 id="{{ name }}"><code>{{ name }}</code></h2>
<p>{{ schema.description or "" }}</p>
<table>{% for field, value in (schema.properties or {}).items() %}
<tr><td><code>{{ field }}</code>{% if field in (schema.required or []) %} *{% endif %}</td>
<td>{{ link(value) }}</td><td>{{ value.description or "" }}</td></tr>
{% endfor %}</table>
{% endfor %}
<p>* needed</p>
</body></html>
"""
_TEMPLATE = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(_PAGE)

_BOUNDS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
    "maxItems": "at most {}",
    "maxProperties": "at most {} entries",
    "pattern": "matching {}",
}


def as_html(document: dict[str, Any]) -> str:
    """Returns the whole HTML document."""
    return _TEMPLATE.render(document=document, link=_in_words)


def _in_words(schema: dict[str, Any]) -> str:
    """Describes a schema in a short phrase."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return Markup('<a href="#{0}">{0}</a>').format(name)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return Markup(" or ").join(_in_words(each) for each in schema[choice])
    if "enum" in schema:
        return Markup(" or ").join(Markup("<code>{}</code>").format(_json(value)) for value in schema["enum"])
    if "const" in schema:
        return Markup("<code>{}</code>").format(_json(schema["const"]))
    words = escape(schema.get("type", "anything"))
    if schema.get("type") == "array":
        words = Markup("list of {}").format(_in_words(schema.get("items", {})))
    bounds = [phrase.format(schema[name]) for name, phrase in _BOUNDS.items() if name in schema]
    return words + (Markup(", {}").format(", ".join(bounds)) if bounds else "")


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
