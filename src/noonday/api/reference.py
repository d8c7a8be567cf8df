"""The page ``/docs``: the OpenAPI document for people, in one piece, without scripts."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from noonday.api.openapi import describe
from noonday.api.routes import Route

STYLE: Final = """\
:root { color-scheme: light dark; --line: #8885; --soft: #8882; --accent: #b45309; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); }
h3 { margin-top: 2.5rem; } a { color: var(--accent); }
code { font: 0.875em ui-monospace, monospace; background: var(--soft); padding: 0 0.25em; }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0; display: block; overflow: auto; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 0.8rem 0.3rem 0;
         border-bottom: 1px solid var(--line); }
nav ul { columns: 20rem; list-style: none; padding: 0; } nav code { background: none; }
pre { background: var(--soft); padding: 0.8rem; overflow: auto; }
.method { display: inline-block; min-width: 4.5rem; font-weight: 700; }
"""

_HASH: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
"""To be sent with the page: a browser runs nothing and loads nothing."""


def page(routes: Sequence[Route]) -> bytes:
    """The page as HTML, in UTF-8."""
    return "\n".join(_page(describe(routes))).encode()


def _page(document: Mapping[str, Any]) -> Iterator[str]:
    info = document["info"]
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(info['title'])} API</title><style>{STYLE}</style></head><body>"
    )
    yield f"<header><h1>{_text(info['title'])} API {_text(info['version'])}</h1>"
    yield f"{_prose(info['description'])}<p><a href='/openapi.json'>openapi.json</a></p></header>"
    yield from _contents(document)
    yield "<main><h2>Calls</h2>"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield from _operation(f"{method.upper()} {path}", operation, document)
    yield "<h2>Webhooks</h2>"
    for name, operations in document["webhooks"].items():
        yield from _operation(name, operations["post"], document)
    yield "<h2>Bodies</h2>"
    for name, schema in document["components"]["schemas"].items():
        yield from _schema(name, schema)
    yield "</main></body></html>"


def _contents(document: Mapping[str, Any]) -> Iterator[str]:
    yield "<nav aria-label='Calls'><ul>"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield (
                f"<li><a href='#{_text(operation['operationId'])}'><code><span class='method'>"
                f"{method.upper()}</span>{_text(path)}</code></a></li>"
            )
    yield "</ul></nav>"


def _operation(
    title: str, operation: Mapping[str, Any], document: Mapping[str, Any]
) -> Iterator[str]:
    yield f"<section id='{_text(operation['operationId'])}'><h3><code>{_text(title)}</code></h3>"
    yield f"<p>{_inline(operation['summary'])}. {_inline(operation.get('description', ''))}</p>"
    if operation["parameters"]:
        rows: list[tuple[str, ...]] = [
            (
                f"<code>{_text(each['name'])}</code>",
                _text(each["in"]) + (", required" if each["required"] else ""),
                _type(each["schema"]),
                _inline(each.get("description", "")),
            )
            for each in operation["parameters"]
        ]
        yield from _table(("parameter", "where", "type", ""), rows)
    if "requestBody" in operation:
        yield f"<p>Body: {_content(operation['requestBody'])}</p>"
        yield from _example(operation["requestBody"])
    rows = [
        _response(status, response, document) for status, response in operation["responses"].items()
    ]
    yield from _table(("answer", "meaning", "headers", "body"), rows)
    yield "</section>"


def _response(
    status: str, response: Mapping[str, Any], document: Mapping[str, Any]
) -> tuple[str, ...]:
    if "$ref" in response:
        response = document["components"]["responses"][_name(response["$ref"])]
    headers = " ".join(f"<code>{_text(name)}</code>" for name in response.get("headers", {}))
    return f"<code>{status}</code>", _inline(response["description"]), headers, _content(response)


def _content(message: Mapping[str, Any]) -> str:
    return ", ".join(
        f"<code>{_text(media_type)}</code> {_type(content['schema'])}"
        for media_type, content in message.get("content", {}).items()
    )


def _example(message: Mapping[str, Any]) -> Iterator[str]:
    for content in message["content"].values():
        if "example" in content:
            text = msgspec.json.format(msgspec.json.encode(content["example"]))
            yield f"<pre>{_text(text.decode())}</pre>"


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"<section id='schema-{_text(name)}'><h3>{_text(name)}</h3>"
    yield f"<p>{_inline(schema.get('description', ''))}</p>"
    required = schema.get("required", ())
    rows = [
        (
            f"<code>{_text(field)}</code>",
            _type(kind) + (", required" if field in required and "default" not in kind else ""),
            f"<code>{_text(_json(kind['default']))}</code>" if "default" in kind else "",
            _inline(kind.get("description", "")),
        )
        for field, kind in schema.get("properties", {}).items()
    ]
    yield from _table(("field", "type", "default", ""), rows)
    yield "</section>"


_LIMITS: Final = (
    ("minimum", "≥ {}"),
    ("maximum", "≤ {}"),
    ("minLength", "≥ {} characters"),
    ("maxLength", "≤ {} characters"),
    ("minItems", "≥ {} items"),
    ("maxItems", "≤ {} items"),
    ("maxProperties", "≤ {} members"),
)


def _type(schema: Mapping[str, Any]) -> str:
    """A type in a few words, with a link where it is described further down."""
    if "$ref" in schema:
        name = _text(_name(schema["$ref"]))
        return f"<a href='#schema-{name}'>{name}</a>"
    for union in ("oneOf", "anyOf"):
        if union in schema:
            return " or ".join(map(_type, schema[union]))
    if "enum" in schema:
        return " ".join(f"<code>{_text(_json(word))}</code>" for word in schema["enum"])
    kind = schema.get("type", "any JSON")
    if kind == "array":
        kind = f"array of {_type(schema.get('items', {}))}"
    elif isinstance(schema.get("additionalProperties"), dict):
        kind = f"map to {_type(schema['additionalProperties'])}"
    limits = [text.format(schema[limit]) for limit, text in _LIMITS if limit in schema]
    return ", ".join((kind, *filter(None, (_text(schema.get("format", "")),)), *limits))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    yield f"<table><thead><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr></thead><tbody>"
    for row in rows:
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
    yield "</tbody></table>"


def _prose(text: str) -> str:
    """Paragraphs and lists of one level: what the descriptions use of Markdown."""
    blocks = []
    for block in text.strip().split("\n\n"):
        if block.startswith("* "):
            items = re.split(r"^\* ", block, flags=re.MULTILINE)[1:]
            blocks.append(f"<ul>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</ul>")
        else:
            blocks.append(f"<p>{_inline(block)}</p>")
    return "".join(blocks)


def _inline(text: str) -> str:
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", _text(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)


def _text(text: str) -> str:
    return html.escape(text)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]
