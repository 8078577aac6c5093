"""Inputs stored as chains of chunks: restored byte for byte, with little stored for each."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nousd.errors import InputNotWhole
from nousd.machine.context import input_chunks as fragments
from nousd.machine.context.compiler import Budget, CompiledInput, Frame, compile_input
from nousd.machine.context.input_chunks import Chain, StoredInput, resume_chain, store_input
from nousd.machine.context.model_input import (
    AssistantMessage,
    ModelInput,
    ModelMessage,
    ToolSpec,
    UserMessage,
)
from nousd.wire.codec.canonical_json import digest
from nousd.wire.codec.input_chunks import assemble_input, decode_node
from nousd.wire.events.models import Omitted
from nousd.wire.objects.entries import Entry
from tests.harness.model_inputs import canonical_of
from tests.machine.contexts import budgets, contexts, frames
from tests.suites import examples

TOOLS = (ToolSpec("read", "reads a file " * 50, {"type": "object"}),)


class Shelf:
    """A store of artifacts, each stored once."""

    def __init__(self) -> None:
        self.artifacts: dict[str, bytes] = {}

    def put(self, stored: StoredInput) -> StoredInput:
        for artifact_id, data in stored.artifacts:
            assert digest(data) == artifact_id
            self.artifacts[artifact_id] = data
        return stored

    def whole(self, stored: StoredInput) -> bytes:
        return assemble_input(stored.input_ref, self.artifacts.__getitem__)

    @property
    def size(self) -> int:
        return sum(map(len, self.artifacts.values()))


def request_of(*messages: ModelMessage, system: str = "Be kind.") -> ModelInput:
    return ModelInput(messages=messages, model="m", provider="p", system=system, tools=TOOLS)


def check(shelf: Shelf, stored: StoredInput, request: ModelInput) -> None:
    """Assert that the artifacts restore the input, and that its hash is stored."""
    whole = canonical_of(request)
    assert shelf.whole(stored) == whole
    assert stored.input_hash == f"sha256:{hashlib.sha256(whole).hexdigest()}"


def conversation(count: int) -> list[ModelMessage]:
    return [
        UserMessage(f"q{number}") if number % 2 == 0 else AssistantMessage(f"a{number}")
        for number in range(count)
    ]


def test_an_input_is_restored_from_its_artifacts() -> None:
    shelf = Shelf()
    for request in (
        request_of(),
        request_of(UserMessage("hé\ud800")),
        request_of(*conversation(5)),
        request_of(*conversation(200), UserMessage("hé\ud800"), *conversation(101)),
    ):
        check(shelf, shelf.put(store_input(None, request)), request)


def test_the_next_input_stores_only_its_new_messages() -> None:
    shelf = Shelf()
    long = conversation(500)
    first = shelf.put(store_input(None, request_of(*long)))
    request = request_of(*long, AssistantMessage("yes"), UserMessage("and?"))
    second = shelf.put(store_input(first.chain, request))
    check(shelf, second, request)
    [(node_ref, node)] = second.artifacts
    assert second.input_ref == node_ref
    assert decode_node(node).previous == first.input_ref
    assert len(node) < 600
    assert second.rest_ref == first.rest_ref


@pytest.mark.slow
def test_five_thousand_calls_store_their_history_once() -> None:
    shelf = Shelf()
    chain: Chain | None = None
    messages: list[ModelMessage] = []
    for number in range(5_000):
        messages += [UserMessage(f"question {number} " * 10), AssistantMessage("answer " * 20)]
        request = request_of(*messages[:-1])
        stored = shelf.put(store_input(chain, request))
        chain = stored.chain
    check(shelf, stored, request)
    whole = len(canonical_of(request))
    assert shelf.size < whole + 5_000 * 400


def test_messages_in_the_chain_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    long = conversation(100)
    chain = store_input(None, request_of(*long)).chain
    encoded: list[ModelMessage] = []
    join = fragments._encode_messages

    def counted(messages: Sequence[ModelMessage]) -> bytes | memoryview:
        encoded.extend(messages)
        return join(messages)

    monkeypatch.setattr(fragments, "_encode_messages", counted)
    store_input(chain, request_of(*long, UserMessage("new")))
    assert encoded == [UserMessage("new")]


def test_a_closing_message_is_not_part_of_the_chain() -> None:
    shelf = Shelf()
    first_request = request_of(*conversation(2), UserMessage("go on"))
    first = shelf.put(store_input(None, first_request, closing=1))
    check(shelf, first, first_request)
    second_request = request_of(*conversation(2), AssistantMessage("more"), UserMessage("thanks"))
    second = shelf.put(store_input(first.chain, second_request))
    check(shelf, second, second_request)
    assert decode_node(second.artifacts[0][1]).previous == first.input_ref
    only = request_of(UserMessage("go on"))
    check(shelf, shelf.put(store_input(None, only, closing=1)), only)
    nothing_yet = shelf.put(store_input(None, request_of())).chain
    check(shelf, shelf.put(store_input(nothing_yet, only)), only)


@pytest.mark.parametrize(
    "messages",
    [
        [UserMessage("another beginning"), *conversation(6)[1:]],
        conversation(3),
        [],
        [*conversation(5), UserMessage("another end")],
    ],
    ids=["begins differently", "is shorter", "is empty", "ends differently"],
)
def test_different_messages_begin_a_new_chain(
    messages: Sequence[ModelMessage],
) -> None:
    shelf = Shelf()
    first = shelf.put(store_input(None, request_of(*conversation(6))))
    request = request_of(*messages)
    stored = shelf.put(store_input(first.chain, request))
    check(shelf, stored, request)
    assert decode_node(stored.artifacts[0][1]).previous is None


def test_a_new_system_prompt_is_stored_without_the_history() -> None:
    shelf = Shelf()
    first = shelf.put(store_input(None, request_of(*conversation(100))))
    request = request_of(*conversation(100), system="Be brief.")
    second = shelf.put(store_input(first.chain, request))
    check(shelf, second, request)
    assert [artifact_id for artifact_id, _ in second.artifacts] == [
        second.input_ref,
        second.rest_ref,
    ]
    assert sum(len(data) for _, data in second.artifacts) < 1_500


def test_a_node_lists_the_omitted_entries() -> None:
    omitted = (Omitted("msg-1", "oldest"), Omitted("msg-2", "preview"))
    stored = store_input(None, request_of(*conversation(1)), omitted=omitted)
    assert decode_node(stored.artifacts[0][1]).omitted == omitted


# --- resumed chains --------------------------------------------------------------------------


def test_a_chain_resumes_from_a_stored_node() -> None:
    shelf = Shelf()
    first = shelf.put(store_input(None, request_of(*conversation(7))))
    longer = request_of(*conversation(7), AssistantMessage("yes"), UserMessage("and?"))
    node = decode_node(shelf.artifacts[first.input_ref])
    chain = resume_chain(node, first.input_ref, longer.messages)
    stored = shelf.put(store_input(chain, longer))
    check(shelf, stored, longer)
    assert [artifact_id for artifact_id, _ in stored.artifacts] == [stored.input_ref]
    assert stored == store_input(first.chain, longer)._replace(chain=stored.chain)


@pytest.mark.parametrize("count", [0, 3, 6])
def test_a_chain_does_not_resume_from_a_node_with_other_messages(count: int) -> None:
    stored = store_input(None, request_of(*conversation(7)))
    node = decode_node(stored.artifacts[0][1])
    others = [*conversation(count), *[UserMessage("other")] * (7 - count)]
    assert resume_chain(node, stored.input_ref, others) is None
    assert resume_chain(node, stored.input_ref, conversation(6)) is None


# --- damaged artifacts -----------------------------------------------------------------------


def test_a_changed_artifact_is_refused() -> None:
    shelf = Shelf()
    stored = shelf.put(store_input(None, request_of(*conversation(3))))
    for artifact_id in (stored.input_ref, stored.rest_ref):
        damaged = {**shelf.artifacts, artifact_id: shelf.artifacts[artifact_id] + b" "}
        with pytest.raises(InputNotWhole, match="other bytes than its id says"):
            assemble_input(stored.input_ref, damaged.__getitem__)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"messages":3}', b"[]"])
def test_a_malformed_artifact_is_refused(data: bytes) -> None:
    with pytest.raises(InputNotWhole):
        assemble_input(digest(data), {digest(data): data}.__getitem__)


# --- any session -----------------------------------------------------------------------------


@settings(max_examples=examples(50))
@given(
    frames().flatmap(lambda f: st.tuples(st.just(f), budgets(f))),
    st.lists(contexts(), min_size=1, max_size=3),
    st.data(),
)
def test_every_input_of_any_session_is_restored(
    framed: tuple[Frame, Budget], paths: list[list[Entry]], data: st.DataObject
) -> None:
    frame, within = framed
    shelf = Shelf()
    chain: Chain | None = None
    for path in paths:
        for end in sorted(data.draw(st.sets(st.integers(0, len(path)), max_size=4))):
            compiled: CompiledInput = compile_input(path[:end], frame, within)
            stored = shelf.put(
                store_input(
                    chain,
                    compiled.request,
                    closing=compiled.closing,
                    omitted=compiled.omitted,
                )
            )
            check(shelf, stored, compiled.request)
            chain = stored.chain
