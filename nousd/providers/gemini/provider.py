"""Gemini's own API: ``generateContent``, streamed."""

from __future__ import annotations

from typing import ClassVar, Final
from urllib.parse import quote, urlencode

import msgspec

from nousd.machine.context.model_input import ModelInput
from nousd.providers.encoding.attachments import kind_of, sees_images
from nousd.providers.encoding.request_body import encode_body
from nousd.providers.encoding.tool_names import ToolNames
from nousd.providers.gemini.request import DIALECT, contents_body
from nousd.providers.gemini.stream import GeminiAnswer
from nousd.providers.http.answer_stream import AnswerStream
from nousd.providers.http.hosted import Call, HostedProvider, ModelsPage
from nousd.providers.interface import Blobs
from nousd.wire.codec.decoding import decode_json

DEFAULT_MODEL: Final = "gemini-flash-latest"
"""An alias that always names an existing model: Google retires models after about a year."""

_COLLECTIONS: Final = ("models/", "tunedModels/")
"""Valid prefixes of a model's name; without one, ``models/`` is added."""


class GeminiProvider(HostedProvider):
    """A Gemini server; see ``HostedProvider``.

    ``api_base`` precedes ``/v1beta``.
    """

    name: ClassVar[str] = DIALECT
    vendor_api_base: ClassVar[str] = "https://generativelanguage.googleapis.com"
    key_variable: ClassVar[str] = "GEMINI_API_KEY"
    first_model: ClassVar[str] = DEFAULT_MODEL
    models_path: ClassVar[str] = "/v1beta/models?pageSize=1000"

    @staticmethod
    def key_headers(key: str) -> dict[str, str]:
        return {"x-goog-api-key": key}

    def call(self, request: ModelInput, blobs: Blobs) -> Call:
        answer = GeminiAnswer(ToolNames(request.tools).back())
        body = encode_body(contents_body(request, blobs, self.conversations))
        path = f"/v1beta/{_resource(request.model)}:streamGenerateContent?alt=sse"
        return Call(path, body, AnswerStream(answer))

    def accepts(self, model: str, media_type: str) -> bool:
        kind = kind_of(media_type)
        if kind == "image":
            return media_type != "image/gif" and sees_images(model)
        return kind == "text" or (kind == "pdf" and sees_images(model))

    @staticmethod
    def read_models(body: bytes) -> ModelsPage:
        page = decode_json(body, type=_Page)
        names = tuple(
            model.name.removeprefix("models/")
            for model in page.models
            if "generateContent" in (model.methods or ("generateContent",))
        )
        if not page.next_page_token:
            return ModelsPage(names)
        more = urlencode({"pageToken": page.next_page_token})
        return ModelsPage(names, f"{GeminiProvider.models_path}&{more}")


def _resource(model: str) -> str:
    """Return the model's path. The name is quoted, so it cannot lead to another resource."""
    collection = next((name for name in _COLLECTIONS if model.startswith(name)), "")
    return (collection or "models/") + quote(model.removeprefix(collection), safe="")


class _ListedModel(msgspec.Struct):
    name: str
    methods: list[str] | None = msgspec.field(default=None, name="supportedGenerationMethods")


class _Page(msgspec.Struct):
    models: list[_ListedModel]
    next_page_token: str | None = msgspec.field(default=None, name="nextPageToken")
