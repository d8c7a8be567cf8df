from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from noonday.receiver import (
    DedupeStore,
    InvalidSignature,
    Receiver,
    SqliteStore,
    Verdict,
)
from tests.receiver.requests import BODY, WHSEC, headers

RUN = "019390f0000070008000000000000001-s1795953600250000"
FOREVER = 10.0**12


def attempt(receiver: Receiver, lease_version: int) -> tuple[Verdict, object]:
    sent = headers(number=lease_version, lease_version=lease_version)
    return receiver.accept(sent, BODY)


@pytest.fixture
def receiver(store: DedupeStore) -> Receiver:
    return Receiver(WHSEC, store, tolerance_sec=FOREVER)


def test_an_effect_happens_once_over_retries_and_replays(receiver: Receiver) -> None:
    verdict, delivery = receiver.accept(headers(), BODY)
    assert verdict is Verdict.NEW
    assert receiver.done(delivery)
    for lease_version in (2, 3, 20):
        assert attempt(receiver, lease_version)[0] is Verdict.DUPLICATE
    assert (Verdict.DUPLICATE.status, Verdict.DUPLICATE.headers) == (
        200,
        {"X-Noonday-Duplicate": "1"},
    )


def test_a_later_attempt_takes_over_and_the_earlier_one_can_no_longer_commit(
    receiver: Receiver,
) -> None:
    first = receiver.accept(headers(), BODY)
    second = receiver.accept(headers(number=2, lease_version=2), BODY)
    assert (first.verdict, second.verdict) == (Verdict.NEW, Verdict.NEW)
    assert not receiver.done(first.delivery)
    assert receiver.done(second.delivery)
    assert not receiver.done(second.delivery)


def test_an_attempt_that_comes_after_its_successor_is_stale(receiver: Receiver) -> None:
    second = receiver.accept(headers(number=2, lease_version=2), BODY)
    assert attempt(receiver, 1)[0] is Verdict.STALE
    assert receiver.done(second.delivery)
    assert attempt(receiver, 1)[0] is Verdict.STALE
    assert Verdict.STALE.status == 409


def test_the_same_attempt_again_is_not_called_done_before_it_is(receiver: Receiver) -> None:
    first = receiver.accept(headers(), BODY)
    assert receiver.accept(headers(), BODY).verdict is Verdict.IN_PROGRESS
    assert Verdict.IN_PROGRESS.status == 425
    assert receiver.done(first.delivery)
    assert receiver.accept(headers(), BODY).verdict is Verdict.DUPLICATE


def test_an_attempt_after_a_failed_one_is_let_in(receiver: Receiver) -> None:
    assert attempt(receiver, 1)[0] is Verdict.NEW
    assert attempt(receiver, 4)[0] is Verdict.NEW
    assert attempt(receiver, 3)[0] is Verdict.STALE


def test_runs_do_not_touch_each_other(store: DedupeStore) -> None:
    assert store.begin("one", 5) is Verdict.NEW
    assert store.begin("other", 1) is Verdict.NEW
    assert store.finish("other", 1)
    assert store.begin("one", 6) is Verdict.NEW
    assert not store.finish("unknown", 1)


def test_a_forged_request_leaves_no_trace(store: DedupeStore, receiver: Receiver) -> None:
    with pytest.raises(InvalidSignature):
        receiver.accept(headers() | {"X-Lease-Version": "99"}, BODY)
    assert attempt(receiver, 1)[0] is Verdict.NEW


def test_of_many_at_the_same_time_one_commits(store: DedupeStore) -> None:
    committed: list[int] = []
    start = threading.Barrier(8)

    def work(lease_version: int) -> None:
        start.wait(10)
        verdict = store.begin(RUN, lease_version)
        if verdict is Verdict.NEW and store.finish(RUN, lease_version):
            committed.append(lease_version)

    threads = [threading.Thread(target=work, args=(1 + place % 4,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(committed) == 1


def test_an_attempt_that_comes_many_times_at_once_is_let_in_once(store: DedupeStore) -> None:
    verdicts: list[Verdict] = []
    together = threading.Barrier(4)

    def work() -> None:
        for run in range(25):
            together.wait(10)
            verdicts.append(store.begin(str(run), 1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(verdicts) == 100
    assert verdicts.count(Verdict.NEW) == 25
    assert verdicts.count(Verdict.IN_PROGRESS) == 75


WORK = """
import sys
from noonday.receiver import SqliteStore, Verdict
store = SqliteStore(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for run in range(20):
    lease_version = 1 + (run + int(sys.argv[2])) % 3
    verdict = store.begin(str(run), lease_version)
    if verdict is Verdict.NEW and store.finish(str(run), lease_version):
        print(run, flush=True)
"""


def test_of_many_processes_one_commits(tmp_path: Path) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORK, tmp_path / "deliveries.db", str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for place in range(3)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    done = [line for worker in workers for line in worker.communicate(timeout=60)[0].split()]
    assert sorted(done, key=int) == [str(run) for run in range(20)]
    assert {worker.returncode for worker in workers} == {0}


def test_an_effect_in_the_same_transaction_happens_once_even_across_a_crash(
    tmp_path: Path,
) -> None:
    path = tmp_path / "billing.db"
    store = SqliteStore(path)
    receiver = Receiver(WHSEC, store, tolerance_sec=FOREVER)
    billing = sqlite3.connect(path)
    billing.execute("create table charges (run_id text)")

    first = receiver.accept(headers(), BODY).delivery
    billing.execute("insert into charges values (?)", (first.run_id,))
    billing.rollback()  # a crash before the commit
    second = receiver.accept(headers(number=2, lease_version=2), BODY).delivery
    for delivery in (second, first):
        billing.execute("insert into charges values (?)", (delivery.run_id,))
        if store.finish(delivery.run_id, delivery.lease_version, billing):
            billing.commit()
        else:
            billing.rollback()
    assert billing.execute("select count(*) from charges").fetchone() == (1,)
    assert receiver.accept(headers(number=3, lease_version=3), BODY).verdict is Verdict.DUPLICATE
    billing.close()


def test_what_is_done_is_remembered_by_the_next_process(tmp_path: Path) -> None:
    assert SqliteStore(tmp_path / "a.db").begin(RUN, 1) is Verdict.NEW
    assert SqliteStore(tmp_path / "a.db").finish(RUN, 1)
    assert SqliteStore(tmp_path / "a.db").begin(RUN, 2) is Verdict.DUPLICATE


def test_old_runs_can_be_forgotten(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    store.begin(RUN, 1)
    assert store.forget(older_than_sec=60) == 0
    assert store.forget(older_than_sec=-60) == 1
    assert store.begin(RUN, 1) is Verdict.NEW
