"""Which IP addresses a webhook may be sent to.

Own rules over the whole address space, after the IANA special-purpose registries (RFC 6890):
``ipaddress.is_global`` alone calls NAT64 and 6to4 forms of internal addresses global.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

Address = IPv4Address | IPv6Address

_NEVER_4: Final = tuple(
    (IPv4Network(network), reason)
    for network, reason in (
        ("169.254.0.0/16", "link-local or cloud metadata"),
        ("100.100.100.200/32", "cloud metadata"),
        ("168.63.129.16/32", "cloud metadata"),
        ("192.0.0.192/32", "cloud metadata"),
        ("0.0.0.0/8", "unspecified"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "documentation"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("192.88.99.0/24", "6to4 relay"),
        ("198.18.0.0/15", "benchmarking"),
        ("224.0.0.0/4", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("240.0.0.0/4", "reserved"),
    )
)
_PRIVATE_4: Final = tuple(
    (IPv4Network(network), reason)
    for network, reason in (
        ("127.0.0.0/8", "loopback"),
        ("10.0.0.0/8", "private"),
        ("172.16.0.0/12", "private"),
        ("192.168.0.0/16", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
    )
)
_NEVER_6: Final = tuple(
    (IPv6Network(network), reason)
    for network, reason in (
        ("fd00:ec2::/32", "cloud metadata"),
        ("fd20:ce::254/128", "cloud metadata"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
        ("::/128", "unspecified"),
        ("64:ff9b:1::/48", "local NAT64"),
        ("100::/64", "discard"),
        ("2001::/32", "Teredo"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "documentation"),
        ("3fff::/20", "documentation"),
        ("2002::/16", "6to4"),
        ("5f00::/16", "segment routing"),
    )
)
_PRIVATE_6: Final = (
    (IPv6Network("::1/128"), "loopback"),
    (IPv6Network("fc00::/7"), "private"),
)
_UNICAST: Final = IPv6Network("2000::/3")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_ISATAP: Final = frozenset((0x0000_5EFE, 0x0200_5EFE))


@lru_cache(4_096)
def blocked_reason(ip: Address, *, allow_private: bool = False) -> str | None:
    """Why ``ip`` may not be called, or None if it may.

    ``allow_private`` opens loopback, private, unique local and carrier-grade NAT addresses, never
    link-local, metadata, multicast or reserved ones.
    """
    if isinstance(ip, IPv4Address):
        return _blocked_4(ip, allow_private)
    if (inner := ip.ipv4_mapped) is not None:
        return _blocked_4(inner, allow_private)
    if ip in _NAT64:
        # The well-known prefix may carry global addresses only (RFC 6052 §3.1).
        return _blocked_4(_low_32(ip), allow_private=False)
    return _blocked_6(ip, allow_private)


def _blocked_4(ip: IPv4Address, allow_private: bool) -> str | None:
    rules = _NEVER_4 if allow_private else _NEVER_4 + _PRIVATE_4
    return next((reason for network, reason in rules if ip in network), None)


def _blocked_6(ip: IPv6Address, allow_private: bool) -> str | None:
    for network, reason in _NEVER_6:
        if ip in network:
            return reason
    for network, reason in _PRIVATE_6:
        if ip in network:
            return None if allow_private else reason
    if ip not in _UNICAST:
        # IPv4-compatible and -translated forms too: nothing else outside is in use.
        return "reserved"
    if int(ip) >> 32 & 0xFFFF_FFFF in _ISATAP:
        return _blocked_4(_low_32(ip), allow_private=False)
    return None


def _low_32(ip: IPv6Address) -> IPv4Address:
    return IPv4Address(int(ip) & 0xFFFF_FFFF)
