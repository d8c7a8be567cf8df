"""URLs that try to reach what is internal, in every spelling that somebody's parser accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_FILE: Final = Path(__file__).with_name("internal_hosts.txt")
INTERNAL_HOSTS: Final = [
    host
    for line in _FILE.read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
    for host in line.split()
]
"""Well-formed, and refused for the address that they name."""

MALFORMED: Final = [
    "",
    "/hook",
    "hook",
    "//127.0.0.1/hook",
    "http:127.0.0.1/hook",
    "http:/127.0.0.1/hook",
    "http:///hook",
    "http://",
    "http:// 127.0.0.1/hook",
    " http://127.0.0.1/hook",
    "http://127.0.0.1/hook\n",
    "http://127.0.0.1\t/hook",
    "http://127.0.0.1\r\nX: y/hook",
    "http://\x00127.0.0.1/hook",
    "ftp://127.0.0.1/hook",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "ws://127.0.0.1/",
    "unix:///var/run/docker.sock",
    "data:text/plain,hello",
    "javascript:alert(1)",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
    "http://user@127.0.0.1/hook",
    "http://user:pass@127.0.0.1/hook",
    "http://example.com@127.0.0.1/hook",
    "http://example.com:80@127.0.0.1/hook",
    "http://127.0.0.1@example.com/hook",
    "http://@127.0.0.1/hook",
    "http://example.com#@127.0.0.1/hook",
    "http://127.0.0.1#hook",
    "http://example.com\\@127.0.0.1/hook",
    "http://example.com\\127.0.0.1/hook",
    "http:\\\\127.0.0.1\\hook",
    "http://127.0.0.1\\hook",
    "http://%31%32%37.0.0.1/hook",
    "http://127.0.0.1%2f@example.com/hook",
    "http://localhost%00.example.com/hook",
    "http://127.0.0.1%00/hook",
    "http://[::1%25lo]/hook",
    "http://[fe80::1%25eth0]/hook",
    "http://[::1/hook",
    "http://::1/hook",
    "http://[::1]x/hook",
    "http://[127.0.0.1]/hook",
    "http://[v1.fe80::a]/hook",
    "http://[]/hook",
    "http://127.0.0.1:/hook",
    "http://127.0.0.1:0/hook",
    "http://127.0.0.1:65536/hook",
    "http://127.0.0.1:80:80/hook",
    "http://127.0.0.1:+80/hook",
    "http://127.0.0.1:٨٠/hook",
    "http://127.0.0.1.5/hook",
    "http://127.0.0.256/hook",
    "http://127.0.0.08/hook",
    "http://0x7g.1/hook",
    "http://1_27.0.0.1/hook",
    "http://example.0x7f/hook",
    "http://4294967296/hook",
    "http://127..1/hook",
    "http://.127.0.0.1/hook",
    "http://127.0.0.1../hook",
    "http://-example.com/hook",
    "http://example..com/hook",
    "http://exam ple.com/hook",
    "http://exa<mple.com/hook",
    "http://faß.example/hook",
    "http://a\u200db.example/hook",
    "http://\ud800.example/hook",
    f"http://{'a' * 64}.example/hook",
    f"http://{'a.' * 130}example/hook",
    "http://example.com/a b",
    "http://example.com/ä",
    "http://example.com/%zz",
    "http://example.com/<script>",
    "http://example.com/a\x00b",
]
"""Refused for their form: no two parsers agree on them, or they hold what a URL must not."""
