from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noonday.domain.addresses import blocked_reason
from noonday.domain.target import (
    MAX_HEADER_VALUE,
    MAX_URL,
    RESERVED_HEADERS,
    header_fault,
    is_reserved,
    parse_url,
    url_fault,
)
from tests.executors.spellings import INTERNAL_HOSTS, MALFORMED

PUBLIC = [
    "http://example.com",
    "https://example.com/",
    "https://EXAMPLE.com:443/hook?a=1&b[]=%7B%7D",
    "http://example.com:80/a/../b;c=d,e:f@g",
    "http://sub_domain.example.com./hook",
    "http://intranet/hook",
    "http://8.8.8.8/hook",
    "http://134744072/",
    "http://0x08.8.0x808/",
    "http://[2606:4700:4700::1111]/hook",
    "http://[64:ff9b::8.8.8.8]/hook",
    "http://[::ffff:8.8.8.8]/hook",
    "https://bücher.example/hook",
    "https://xn--bcher-kva.example/hook",
]


@pytest.mark.parametrize("url", PUBLIC)
def test_a_url_that_may_be_called_has_no_fault(url: str) -> None:
    assert url_fault(url) is None


@pytest.mark.parametrize("host", INTERNAL_HOSTS)
def test_every_spelling_of_an_internal_address_is_refused_before_it_is_called(host: str) -> None:
    assert str(url_fault(f"http://{host}/hook")).startswith("the address is not allowed (")


@pytest.mark.parametrize("url", MALFORMED)
def test_a_malformed_url_is_refused_even_where_private_addresses_are_allowed(url: str) -> None:
    assert url_fault(url, allow_private=True, ports=None)


@pytest.mark.parametrize("port", [22, 25, 81, 6379, 8080])
def test_other_ports_are_refused_unless_they_are_allowed(port: int) -> None:
    url = f"http://example.com:{port}/"
    assert url_fault(url) == f"port {port} is not allowed"
    assert url_fault(url, ports={port}) is None
    assert url_fault(url, ports=None) is None


def test_private_addresses_can_be_allowed_but_never_metadata_or_multicast() -> None:
    for host in ("127.0.0.1", "10.1.2.3", "192.168.0.1", "100.64.0.1", "[::1]", "[fd12::1]"):
        assert url_fault(f"http://{host}/", allow_private=True) is None
    assert url_fault("http://localhost/", allow_private=True) is None
    for host in ("169.254.169.254", "100.100.100.200", "[fd00:ec2::254]", "[fe80::1]", "224.0.0.1"):
        assert url_fault(f"http://{host}/", allow_private=True)
    for host in ("0.0.0.0", "[::]", "255.255.255.255", "[::ffff:169.254.169.254]"):
        assert url_fault(f"http://{host}/", allow_private=True)


def test_a_url_is_taken_apart_into_what_is_called() -> None:
    endpoint = parse_url("HTTPS://Bücher.Example:8443?x=%C3%A9")
    assert endpoint.origin == "https://xn--bcher-kva.example:8443"
    assert endpoint.resource == "/?x=%C3%A9"
    assert parse_url("http://0x7f.1:80/a").origin == "http://127.0.0.1"
    assert parse_url("http://[0:0::1]:81/a").origin == "http://[::1]:81"


def test_the_longest_url_is_accepted_and_one_character_more_is_not() -> None:
    url = "http://example.com/".ljust(MAX_URL, "a")
    assert url_fault(url) is None
    assert url_fault(url + "a") == f"is longer than {MAX_URL} characters"


@given(st.text(max_size=60))
def test_any_text_is_judged_without_an_accident(text: str) -> None:
    for url in (text, f"http://{text}/", f"http://example.com/{text}"):
        fault = url_fault(url, allow_private=True, ports=None)
        assert fault is None or fault
    header_fault(text, text)


@given(st.integers(min_value=0, max_value=2**128 - 1))
def test_an_ipv6_address_passes_only_as_global_unicast_or_as_a_public_ipv4_in_it(
    value: int,
) -> None:
    ip = ip_address(value.to_bytes(16))
    translated = ip in ip_network("64:ff9b::/96") or ip in ip_network("::ffff:0:0/96")
    if blocked_reason(ip) is None:
        assert ip in ip_network("2000::/3") or translated


@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_an_ipv4_address_passes_only_if_the_registry_calls_it_global(value: int) -> None:
    ip = ip_address(value)
    if not (ip.is_global and not ip.is_multicast):
        assert blocked_reason(ip)


def test_an_address_is_judged_by_the_ipv4_address_in_it() -> None:
    for form in ("::ffff:10.0.0.1", "64:ff9b::10.0.0.1", "2600::200:5efe:10.0.0.1"):
        assert blocked_reason(ip_address(form)) == "private"
    assert blocked_reason(ip_address("::ffff:10.0.0.1"), allow_private=True) is None
    assert blocked_reason(ip_address("64:ff9b::10.0.0.1"), allow_private=True) == "private"
    assert blocked_reason(ip_address("2600::200:5efe:8.8.8.8")) is None


@pytest.mark.parametrize(
    "name",
    [
        *sorted(RESERVED_HEADERS),
        "Webhook-Signature",
        "WEBHOOK-TIMESTAMP",
        "webhook-anything",
        "X-Noonday-Duplicate",
        "Content-Length",
        "HOST",
        "Transfer-Encoding",
        "Connection",
        "Content-Type",
        "TraceParent",
        "X-Run-ID",
        "idempotency-KEY",
    ],
)
def test_reserved_headers_are_refused_in_any_case(name: str) -> None:
    assert is_reserved(name)
    assert header_fault(name, "x") == "is set by Noonday and cannot be given"


@pytest.mark.parametrize("name", ["", " ", "a b", "a:", "a\r\nb", "ü", "a\0", "(a)", "x" * 257])
def test_a_name_that_is_no_token_is_refused(name: str) -> None:
    assert header_fault(name, "x") == "is not a valid header name"


@pytest.mark.parametrize(
    "value", ["a\r\nX-Injected: b", "a\n", "\ta", " a", "a ", "a\0b", "a\x7f", "é", "\x1b[31m"]
)
def test_a_value_that_would_break_the_head_is_refused(value: str) -> None:
    fault = header_fault("X-Team", value)
    assert fault == "has a value that is not visible ASCII, with spaces only between words"


@pytest.mark.parametrize(
    "value", ["", "a", "a b\tc", "Bearer abc.def-~+/=", "x" * MAX_HEADER_VALUE]
)
def test_ordinary_headers_pass(value: str) -> None:
    assert header_fault("Authorization", value) is None
    assert header_fault("x-team", value) is None
