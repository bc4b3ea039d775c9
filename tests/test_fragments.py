"""A page survives a fragment that runs again before the browser has had all of the page: nothing arrives without its place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue

from app import state
from tests import records_for_tests as records
from tests.fake_queue import FakeQueue
from tests.test_run_page import opened


@pytest.fixture
def sent() -> Iterator[list[ForwardMsg]]:
    messages: list[ForwardMsg] = []
    ForwardMsgQueue.on_before_enqueue_msg(lambda message: messages.append(ForwardMsg.FromString(message.SerializeToString())))
    yield messages
    ForwardMsgQueue.on_before_enqueue_msg(None)


def placeless(messages: list[ForwardMsg]) -> list[list[int]]:
    """What the browser cannot place when Streamlit drops what it has not sent of a fragment that runs again."""
    drawn = list(messages)  # the recorder hears the queue below, too
    fragments = {message.delta.fragment_id for message in drawn if message.WhichOneof("type") == "delta"} - {""}
    assert fragments
    return [path for fragment in fragments for path in placeless_without(fragment, drawn)]


def placeless_without(fragment: str, drawn: list[ForwardMsg]) -> list[list[int]]:
    queue = ForwardMsgQueue()
    for message in drawn:
        queue.enqueue(message)
    queue.clear(retain_lifecycle_msgs=True, fragment_ids_this_run=[fragment])
    children: dict[tuple[int, ...], int] = {}
    found = []
    for message in queue.flush():
        if message.WhichOneof("type") == "delta":
            *parent, place = message.metadata.delta_path
            known = children.get(tuple(parent), 0)
            children[tuple(parent)] = max(known, place + 1)
            found += [list(message.metadata.delta_path)] if place > known else []
    return found


def test_while_devices_are_looked_for(sent: list[ForwardMsg], monkeypatch: pytest.MonkeyPatch) -> None:
    queue = FakeQueue((records.gpu(),), ready=False)
    monkeypatch.setattr(state, "job_queue", lambda: queue)
    opened()
    assert placeless(sent) == []


def test_while_a_job_runs_above_the_last_result(sent: list[ForwardMsg], monkeypatch: pytest.MonkeyPatch) -> None:
    queue = FakeQueue((records.gpu(), records.interpreter()))
    monkeypatch.setattr(state, "job_queue", lambda: queue)
    request = records.on_gpu().request
    queue.put("first", [request])
    queue.finish("first", records.on_gpu())
    queue.put("second", [request])
    opened(job="second")
    assert placeless(sent) == []
