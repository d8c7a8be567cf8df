from __future__ import annotations

from pathlib import Path

from noonday.embedded.log import ServerLog


def test_the_log_is_cut_under_a_server_that_goes_on_writing(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "postgres.log", limit_bytes=20)
    with log.open() as server_end:
        server_end.write(b"short\n")
        server_end.flush()
        log.trim()
        assert log.path.read_bytes() == b"short\n"

        server_end.write(b"more than twenty bytes\n")
        server_end.flush()
        log.trim()
        server_end.write(b"after\n")
    assert log.path.read_bytes() == b"after\n"
    assert (tmp_path / "postgres.log.1").read_bytes() == b"short\nmore than twenty bytes\n"


def test_an_error_shows_only_what_the_last_server_said(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "postgres.log")
    for word in (b"first\n", b"second\n"):
        with log.open() as server_end:
            server_end.write(word)
    assert log.since_start() == "second\n"
