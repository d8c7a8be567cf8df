"""Name servers of the test's own."""

from __future__ import annotations

import socket
from typing import Any

from noonday.executors.addresses import GetAddrInfo


def resolving(*addresses: str) -> GetAddrInfo:
    """A name server that answers every name with these addresses."""

    def getaddrinfo(host: str, *_: object) -> list[Any]:
        return [
            (socket.AF_INET6, 1, 6, "", (address, 0, 0, 0))
            if ":" in address
            else (socket.AF_INET, 1, 6, "", (address, 0))
            for address in addresses
        ]

    return getaddrinfo
