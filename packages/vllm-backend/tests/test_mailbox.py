"""What a worker posts reaches the caller who expects it, from another process too, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nnsight_vllm._mailbox import Mailbox, Postbox


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    opened = Mailbox()
    yield opened
    opened.close()


def test_messages_reach_whoever_expects_them_in_any_order(mailbox: Mailbox) -> None:
    delivery = mailbox.expect(["a", "b", "c"])
    postbox = Postbox(mailbox.address)
    assert postbox.reachable
    for key in ("c", "a", "b"):
        postbox.post(key, key.encode() * 1000)
    found = delivery.wait(10)
    assert {key: message.data for key, message in found.items()} == {key: key.encode() * 1000 for key in "abc"}
    postbox.close()


def test_what_has_come_is_returned_once_nothing_more_comes(mailbox: Mailbox) -> None:
    delivery, late = mailbox.expect(["here", "late", "never"]), mailbox.expect(["late-too"])
    postbox = Postbox(mailbox.address)
    postbox.post("here", b"1")

    def post_later() -> None:
        time.sleep(0.3)
        postbox.post_each(lambda: [(["late", "late-too"], b"2")])

    thread = threading.Thread(target=post_later)
    thread.start()
    # Patience is for the next message, not for all of them.
    assert sorted(delivery.wait(0.5)) == ["here", "late"]
    assert late.wait(10)["late-too"] is delivery.found["late"]
    thread.join()
    postbox.close()


def test_whoever_expects_nothing_need_not_wait(mailbox: Mailbox) -> None:
    assert mailbox.expect([]).wait(10) == {}


def test_one_message_reaches_several_and_is_read_once(mailbox: Mailbox) -> None:
    deliveries = {key: mailbox.expect([key]) for key in ("a", "b")}
    postbox = Postbox(mailbox.address)
    postbox.post_each(lambda: [(["a", "gone", "b"], b"both")])
    messages = [delivery.wait(10)[key] for key, delivery in deliveries.items()]
    assert messages[0] is messages[1]
    reads: list[bytes] = []

    def read(data: bytes) -> list[bytes]:
        reads.append(data)
        return reads

    assert all(message.read(read) is reads for message in messages)
    assert reads == [b"both"]
    postbox.close()


def test_an_expected_message_is_read_before_anybody_asks() -> None:
    reads: list[bytes] = []

    def read(data: bytes) -> object:
        reads.append(data)
        if data == b"broken":
            raise ValueError("cannot be read")
        return None if data == b"later" else data.decode()

    mailbox = Mailbox(read_ahead=read)
    delivery = mailbox.expect(["early", "broken", "later", "last"])
    heard = mailbox.listen("a")
    postbox = Postbox(mailbox.address)
    for key in ("nobody", "early", "broken", "later", "+a", "last"):
        postbox.post(key, key.encode())
    found = delivery.wait(10)
    # What comes last may be asked for at once.
    assert found["last"].read(bytes.decode) == "last"
    assert reads[:3] == [b"early", b"broken", b"later"]
    assert found["early"].read(fail) == "early"
    with pytest.raises(ValueError, match="cannot be read"):
        found["broken"].read(fail)
    assert found["later"].read(bytes.upper) == b"LATER"
    assert heard.popleft().read(bytes.upper) == b"+A"
    postbox.close()
    mailbox.close()


def fail(data: bytes) -> object:
    raise AssertionError(f"{data!r} is read again")


def test_another_process_posts_and_ends_at_once(mailbox: Mailbox) -> None:
    delivery = mailbox.expect(["big"])
    script = f"""
        from nnsight_vllm._mailbox import Postbox
        postbox = Postbox({mailbox.address!r})
        postbox.post("big", bytes(5_000_000))
        postbox.close()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)
    assert len(delivery.wait(10)["big"].data) == 5_000_000


def test_what_nobody_expects_is_dropped_and_said_so() -> None:
    dropped: list[bytes] = []
    mailbox = Mailbox(dropped.append)
    kept, forgotten = mailbox.expect(["kept"]), mailbox.expect(["forgotten"])
    mailbox.forget(["forgotten"])
    postbox = Postbox(mailbox.address)
    postbox.post("forgotten", b"1")
    postbox.post("never expected", b"2")
    postbox.post("kept", b"3")
    assert kept.wait(10)["kept"].data == b"3"
    assert dropped == [b"1", b"2"]
    assert forgotten.complete.cancelled()
    postbox.close()
    mailbox.close()


def test_closing_cancels_what_is_expected_and_leaves_no_file_or_thread() -> None:
    mailbox = Mailbox()
    folder = Path(mailbox.address.removeprefix("ipc://")).parent
    assert folder.stat().st_mode & 0o077 == 0
    delivery = mailbox.expect(["late"])
    before = len(os.listdir("/proc/self/fd"))
    mailbox.close()
    assert delivery.complete.cancelled()
    assert not folder.exists()
    assert not Postbox(mailbox.address).reachable
    assert len(os.listdir("/proc/self/fd")) < before
    mailbox.close()


def test_when_the_senders_are_gone_everything_expected_fails(mailbox: Mailbox) -> None:
    deliveries = [mailbox.expect(["lost", "too"]), mailbox.expect(["lost as well"])]
    mailbox.fail(RuntimeError("the worker is gone"))
    for delivery in deliveries:
        with pytest.raises(RuntimeError, match="gone"):
            delivery.wait(1)
