"""Chat Completions of OpenAI and of compatible servers."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from nousd.machine.context.model_input import ModelInput
from nousd.providers.encoding.attachments import kind_of, sees_images
from nousd.providers.encoding.request_body import encode_body
from nousd.providers.encoding.tool_names import ToolNames
from nousd.providers.http.answer_stream import AnswerStream
from nousd.providers.http.hosted import Call, HostedProvider, ModelsPage
from nousd.providers.interface import Blobs
from nousd.providers.openai.request import chat_body
from nousd.providers.openai.stream import ChatAnswer
from nousd.wire.codec.decoding import decode_json

DEFAULT_API_BASE: Final = "https://api.openai.com/v1"
DEFAULT_MODEL: Final = "gpt-5-mini"


class OpenAIProvider(HostedProvider):
    """A Chat Completions server; see ``HostedProvider``.

    ``api_base`` precedes ``/chat/completions``, so it usually ends with ``/v1``.
    """

    name: ClassVar[str] = "openai"
    vendor_api_base: ClassVar[str] = DEFAULT_API_BASE
    key_variable: ClassVar[str] = "OPENAI_API_KEY"
    first_model: ClassVar[str] = DEFAULT_MODEL
    models_path: ClassVar[str] = "/models"

    @staticmethod
    def key_headers(key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def call(self, request: ModelInput, blobs: Blobs) -> Call:
        answer = ChatAnswer(ToolNames(request.tools).back())
        body = encode_body(chat_body(request, blobs, self.conversations))
        return Call("/chat/completions", body, AnswerStream(answer))

    def accepts(self, model: str, media_type: str) -> bool:
        kind = kind_of(media_type)
        if kind == "pdf":
            # Most other servers refuse parts of type ``file``.
            return self.at_vendor and sees_images(model)
        return kind == "text" or (kind == "image" and sees_images(model))

    @staticmethod
    def read_models(body: bytes) -> ModelsPage:
        listed = decode_json(body, type=ListedModels)
        return ModelsPage(tuple(model.id for model in listed.data))


class ListedModel(msgspec.Struct):
    """A model in OpenAI's list of models."""

    id: str


class ListedModels(msgspec.Struct):
    """OpenAI's list of models, which has no pages."""

    data: list[ListedModel]
