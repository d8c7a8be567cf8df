"""What a target's URL and headers may be: all that can be decided without a network.

What a name resolves to is not known here; it is judged again, by address, when connecting.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

from noonday.domain.addresses import Address, blocked_reason

WEB_PORTS: Final = frozenset((80, 443))
MAX_URL: Final = 2_048
MAX_HEADER_VALUE: Final = 8_000

RESERVED_HEADERS: Final = frozenset(
    (
        # What Noonday says and signs.
        "x-job-id",
        "x-run-id",
        "x-occurrence",
        "x-attempt",
        "x-lease-version",
        "x-scheduler-signature",
        "idempotency-key",
        "traceparent",
        "tracestate",
        "content-type",
        "user-agent",
        # What frames a message or belongs to one connection (RFC 9110 §7.6.1).
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "upgrade",
        "http2-settings",
        "expect",
    )
)
RESERVED_PREFIXES: Final = ("webhook-", "x-noonday-")

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_FIELD_VALUE: Final = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)([/?].*)?")
_AUTHORITY: Final = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?")
_RESOURCE: Final = re.compile(r"""(?:[^%"<>\\^`{|}\x00-\x20\x7f-\U0010ffff]|%[0-9A-Fa-f]{2})*""")
_LABEL: Final = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|[0-9]+")
_DOTS: Final = re.compile("[\u3002\uff0e\uff61]")
_NO_ADDRESS: Final = "has a host that ends in a number but is no address"
_CREDENTIAL: Final = re.compile(
    r"authori[sz]ation|authentication|cookie|token|secret|passw|passphrase|credential|signature"
    r"|session|api[-_]?key|(?:^|[-_])(?:auth|key)(?:[-_]|$)"
)
_AMBIGUOUS: Final = re.compile("[\u00df\u03c2\u200c\u200d]")


class Endpoint(NamedTuple):
    """A URL taken apart in the one way that every later step uses."""

    scheme: str
    host: str
    """ASCII, lower case; an address in its canonical spelling, IPv6 without brackets."""
    port: int
    resource: str
    """Path and query, as given."""
    address: Address | None
    """Set when the host is an address in any of its spellings."""

    @property
    def authority(self) -> str:
        """Host and port, the port left out where the scheme implies it."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        implied = self.port == (443 if self.scheme == "https" else 80)
        return host if implied else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """The part of the URL that is safe to show: paths and queries often hold secrets."""
        return f"{self.scheme}://{self.authority}"


def url_fault(
    url: str, *, allow_private: bool = False, ports: Collection[int] | None = WEB_PORTS
) -> str | None:
    """What is wrong with a target's URL, for people, or None. ``ports`` None allows any."""
    try:
        endpoint = parse_url(url)
    except ValueError as fault:
        return str(fault)
    return forbidden(endpoint, allow_private=allow_private, ports=ports)


def forbidden(
    endpoint: Endpoint, *, allow_private: bool, ports: Collection[int] | None
) -> str | None:
    """Why a well-formed endpoint may not be called, as far as its text tells; or None."""
    if ports is not None and endpoint.port not in ports:
        return f"port {endpoint.port} is not allowed"
    reason = None
    if endpoint.address is not None:
        reason = blocked_reason(endpoint.address, allow_private=allow_private)
    elif not allow_private and f".{endpoint.host.rstrip('.')}".endswith(".localhost"):
        reason = "loopback"  # RFC 6761 §6.3
    return f"the address is not allowed ({reason})" if reason else None


def parse_url(url: str) -> Endpoint:
    """Take a URL apart, strictly, so that no two parsers can read it differently.

    Raises:
        ValueError: it is not an absolute http or https URL that can be sent; says why.
    """
    if len(url) > MAX_URL:
        raise ValueError(f"is longer than {MAX_URL} characters")
    if "#" in url:
        raise ValueError("must not have a fragment")
    parts = _URL.fullmatch(url)
    if parts is None:
        raise ValueError("must be an absolute URL")
    scheme, authority, resource = parts[1].lower(), parts[2], parts[3] or "/"
    if scheme not in ("http", "https"):
        raise ValueError("must begin with http:// or https://")
    if "@" in authority:
        raise ValueError("must not hold credentials; use a header")
    if not _RESOURCE.fullmatch(resource):
        raise ValueError("has characters in its path or query that must be percent-encoded")
    host, port, address = _parse_authority(authority, 443 if scheme == "https" else 80)
    return Endpoint(scheme, host, port, f"/{resource.removeprefix('/')}", address)


def _parse_authority(text: str, default_port: int) -> tuple[str, int, Address | None]:
    parts = _AUTHORITY.fullmatch(text)
    if parts is None:
        raise ValueError("has no valid host and port")
    port = int(parts[2]) if parts[2] else default_port
    if not 0 < port < 65_536:
        raise ValueError("has a port outside 1 to 65535")
    if parts[1].startswith("["):
        address: Address | None = _parse_ipv6(parts[1][1:-1])
        return str(address), port, address
    host = _ascii_host(parts[1])
    address = _parse_ipv4(host)
    return (host if address is None else str(address)), port, address


def _parse_ipv6(text: str) -> IPv6Address:
    if "%" in text:
        raise ValueError("must not name an interface in its address")
    try:
        return IPv6Address(text)
    except ValueError:
        raise ValueError("has no valid IPv6 address in its brackets") from None


def _ascii_host(text: str) -> str:
    """The host as it goes into DNS: look-alike digits and dots become what they look like."""
    host = _DOTS.sub(".", unicodedata.normalize("NFKC", text)).lower()
    if _AMBIGUOUS.search(host):
        raise ValueError("has a host with letters that are read in two ways; write it as xn--")
    try:
        host = host if host.isascii() else host.encode("idna").decode("ascii").lower()
    except UnicodeError:
        raise ValueError("has no valid international host name") from None
    name = host.removesuffix(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise ValueError("has no valid host")
    return host


def _parse_ipv4(host: str) -> IPv4Address | None:
    """Read every spelling that resolvers take for an address: ``127.1``, ``0x7f000001``.

    A host that ends in a number is an address or nothing (WHATWG URL, "ends in a number").
    """
    *heads, tail = host.removesuffix(".").split(".")
    if not _NUMBER.fullmatch(tail):
        return None
    places = [_parse_number(head) for head in heads]
    rest, room = _parse_number(tail), 256 ** (4 - len(heads))
    if len(heads) > 3 or any(place > 255 for place in places) or rest >= room:
        raise ValueError(_NO_ADDRESS)
    return IPv4Address(int.from_bytes(places) * room + rest)


def _parse_number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(_NO_ADDRESS)
    try:
        if text.startswith("0x"):
            return int(text[2:], 16)
        return int(text, 8 if text.startswith("0") else 10)
    except ValueError:
        raise ValueError(_NO_ADDRESS) from None


@lru_cache(4_096)
def is_reserved(name: str) -> bool:
    """Whether a header belongs to Noonday or to the framing of the message, whatever its case."""
    lowered = name.lower()
    return lowered in RESERVED_HEADERS or lowered.startswith(RESERVED_PREFIXES)


@lru_cache(4_096)
def carries_credentials(header: str) -> bool:
    """Whether a header's value is a secret, as far as its name tells."""
    return _CREDENTIAL.search(header.lower()) is not None


@lru_cache(4_096)
def _name_fault(name: str) -> str | None:
    if not _TOKEN.fullmatch(name):
        return "is not a valid header name"
    return "is set by Noonday and cannot be given" if is_reserved(name) else None


def header_fault(name: str, value: str) -> str | None:
    """What is wrong with a customer's header, or None (RFC 9110 §5.1, §5.5: token, ASCII value).

    The text never repeats the value.
    """
    return _name_fault(name) or value_fault(value)


def value_fault(value: str) -> str | None:
    """What is wrong with a header's value, or None."""
    if len(value) > MAX_HEADER_VALUE:
        return f"has a value longer than {MAX_HEADER_VALUE} characters"
    if not _FIELD_VALUE.fullmatch(value):
        return "has a value that is not visible ASCII, with spaces only between words"
    return None
