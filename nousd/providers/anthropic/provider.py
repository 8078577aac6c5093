"""The Messages API of Anthropic and of compatible servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final
from urllib.parse import quote

import msgspec

from nousd.machine.context.model_input import ModelInput
from nousd.providers.anthropic.request import messages_body, plan_of
from nousd.providers.anthropic.stream import MessagesAnswer
from nousd.providers.encoding.attachments import kind_of, sees_images
from nousd.providers.encoding.request_body import encode_body
from nousd.providers.encoding.tool_names import ToolNames
from nousd.providers.http.answer_stream import AnswerStream
from nousd.providers.http.hosted import Call, HostedProvider, ModelsPage
from nousd.providers.interface import Blobs
from nousd.wire.codec.decoding import decode_json

DEFAULT_API_BASE: Final = "https://api.anthropic.com"
DEFAULT_MODEL: Final = "claude-sonnet-5-5"
API_VERSION: Final = "2026-10-21"


class AnthropicProvider(HostedProvider):
    """A Messages server; see ``HostedProvider``.

    ``api_base`` precedes ``/v1/messages``, so it does not end with ``/v1``.
    """

    name: ClassVar[str] = "anthropic"
    vendor_api_base: ClassVar[str] = DEFAULT_API_BASE
    key_variable: ClassVar[str] = "ANTHROPIC_API_KEY"
    first_model: ClassVar[str] = DEFAULT_MODEL
    headers: ClassVar[Mapping[str, str]] = {"anthropic-version": API_VERSION}
    models_path: ClassVar[str] = "/v1/models?limit=1000"

    @staticmethod
    def key_headers(key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def call(self, request: ModelInput, blobs: Blobs) -> Call:
        plan = plan_of(request)
        body = encode_body(messages_body(request, blobs, plan, self.conversations))
        answer = MessagesAnswer(ToolNames(request.tools).back())
        return Call("/v1/messages", body, AnswerStream(answer), plan.headers)

    def accepts(self, model: str, media_type: str) -> bool:
        kind = kind_of(media_type)
        if kind == "pdf":
            return sees_images(model) and (self.at_vendor or "claude" in model.lower())
        return kind == "text" or (kind == "image" and sees_images(model))

    @staticmethod
    def read_models(body: bytes) -> ModelsPage:
        page = decode_json(body, type=_Models)
        next_path = None
        if page.has_more and page.last_id:
            next_path = f"{AnthropicProvider.models_path}&after_id={quote(page.last_id, safe='')}"
        return ModelsPage(tuple(model.id for model in page.data), next_path)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]
    has_more: bool = False
    last_id: str | None = None
