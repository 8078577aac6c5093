"""Keys of bodies and queries over HTTP: accepted spellings, refused typing errors, faults in words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from nousd.bridge.replies import HttpError
from nousd.bridge.routing.request_fields import decode_body
from tests.bridge.harness import Bridge, text


class Model(msgspec.Struct):
    provider: str | None = msgspec.field(default=None, name="providerID")


class Part(msgspec.Struct):
    type: str
    text: str | None = None


class Tagged(msgspec.Struct):
    tag: Literal["x", "y"]


class Given(msgspec.Struct):
    ttl_seconds: int = 900
    q: str | None = None
    model: Model | None = None
    parts: list[Part] = []
    size: Annotated[int, msgspec.Meta(ge=1, le=7)] | None = None
    note: Annotated[str, msgspec.Meta(max_length=3)] | None = None
    kind: Literal["b", "a"] | None = None
    tagged: list[Tagged] = []


@pytest.mark.behaviour("http_keys_have_the_spellings_of_replies_and_clients")
@pytest.mark.parametrize("name", ["ttl_seconds", "ttlSeconds"])
async def test_an_override_lasts_as_long_as_each_spelling_of_its_duration_says(
    name: str, bridge: Bridge
) -> None:
    session = await bridge.new_session()
    granted = await bridge.post(f"/session/{session}/workspace/override", **{name: 60})
    assert granted["ttlSeconds"] == 60


@pytest.mark.parametrize("name", ["workspace_root", "workspaceRoot"])
async def test_a_session_is_created_in_the_workspace_in_each_spelling(
    name: str, bridge: Bridge, short_folder: Path
) -> None:
    where = {name: str(short_folder / "not-there")}
    refused = await bridge.http.post("/session", json=where)
    assert refused.status_code in (403, 404), refused.text
    assert refused.json()["code"].startswith("WORKSPACE_")


@pytest.mark.parametrize("name", ["sessionID", "sessionId", "session_id"])
async def test_a_stream_has_one_session_in_each_spelling_of_the_query(
    name: str, bridge: Bridge
) -> None:
    mine, other = await bridge.new_session(), await bridge.new_session()
    query: dict[str, Any] = {name: mine}
    async with bridge.events(**query) as frames:
        for session in (other, mine):
            await bridge.post(f"/session/{session}/prompt_sync", parts=text("hello"))
        seen = await frames.until("session.run.finished")
    assert {frame.properties.get("sessionID", mine) for frame in seen} == {mine}


@pytest.mark.behaviour("http_typing_errors_are_refused")
@pytest.mark.parametrize(
    ("method", "path", "request_", "words"),
    [
        ("POST", "/session", {"json": {"worspace_root": "/"}}, "did you mean workspace_root"),
        ("POST", "/session", {"json": {"WorkspaceRoot": "/"}}, "did you mean workspace_root"),
        ("POST", "/session", {"json": {"model": {"modelid": "m"}}}, "model.modelid is unknown"),
        ("GET", "/event", {"params": {"sessonID": "s"}}, "did you mean sessionID"),
        ("GET", "/event", {"params": {"sessionid": "s"}}, "query: sessionid is unknown"),
        ("GET", "/session", {"params": {"pagesize": "3"}}, "did you mean page_size"),
        ("GET", "/event", {"params": {"aftre": "3"}}, "did you mean after"),
    ],
)
async def test_a_key_or_query_one_edit_from_a_known_one_is_refused_with_that_name(
    method: str, path: str, request_: dict[str, Any], words: str, bridge: Bridge
) -> None:
    reply = await bridge.http.request(method, path, **request_)
    assert (reply.status_code, reply.json()["code"]) == (400, "BAD_REQUEST"), reply.text
    assert words in reply.json()["error"]


@pytest.mark.parametrize(
    ("key", "is_refused"),
    [
        ("ttl_second", True),
        ("ttlsecondss", True),
        ("ttl_zeconds", True),
        ("tl_seconds", True),
        ("TTL-SECONDS", True),
        ("tlt_seconds", True),
        ("ttl_secnods", True),
        ("tlt_secnods", False),
        ("ttl_dseconsd", False),
        ("ttl_secon", False),
        ("seconds", False),
        ("p", False),
        ("qq", False),
        ("", False),
    ],
)
def test_only_keys_one_edit_away_are_refused_and_others_ignored(key: str, is_refused: bool) -> None:
    body = msgspec.json.encode({key: 1})
    if is_refused:
        with pytest.raises(HttpError, match="did you mean ttl_seconds"):
            decode_body(body, Given)
    else:
        assert decode_body(body, Given) == Given()


def test_of_several_spellings_the_first_that_is_not_null_counts() -> None:
    body = b'{"ttlSeconds":null,"ttl_seconds":60,"model":{"providerId":"a","provider_id":"b"}}'
    assert decode_body(body, Given) == Given(ttl_seconds=60, model=Model("a"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[]", "the body must be an object, not an array"),
        (b'{"ttl_seconds":"x"}', "body: ttl_seconds must be an integer, not a string"),
        (b'{"parts":{}}', "body: parts must be an array, not an object"),
        (b'{"parts":[7]}', "body: parts[0] must be an object, not an integer"),
        (b'{"parts":[{}]}', "body: parts[0].type is required"),
        (b'{"parts":[{"type":"a","txt":""}]}', "body: parts[0].txt is unknown; did you mean text?"),
        (b'{"model":[]}', "body: model must be an object or null, not an array"),
        (b'{"size":0}', "body: size must be at least 1"),
        (b'{"size":8}', "body: size must be at most 7"),
        (b'{"note":"long"}', "body: note is too long: at most 3"),
        (b'{"kind":"c"}', "body: kind must be a or b"),
        (b'{"tagged":[{"tag":"y"},{"tag":"z"}]}', "body: tagged[1].tag must be x or y"),
    ],
)
def test_a_refused_body_names_its_field_and_what_it_must_be(body: bytes, words: str) -> None:
    with pytest.raises(HttpError) as caught:
        decode_body(body, Given)
    assert caught.value.message == words
