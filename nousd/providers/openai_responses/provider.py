"""The Responses API of OpenAI and of compatible servers."""

from __future__ import annotations

from typing import ClassVar

from nousd.machine.context.model_input import ModelInput
from nousd.providers.encoding.attachments import kind_of, sees_images
from nousd.providers.encoding.request_body import encode_body
from nousd.providers.encoding.tool_names import ToolNames
from nousd.providers.http.answer_stream import AnswerStream
from nousd.providers.http.hosted import Call, HostedProvider
from nousd.providers.interface import Blobs
from nousd.providers.openai.provider import DEFAULT_API_BASE, DEFAULT_MODEL, OpenAIProvider
from nousd.providers.openai_responses.request import DIALECT, responses_body
from nousd.providers.openai_responses.stream import ResponsesAnswer


class ResponsesProvider(HostedProvider):
    """A Responses server; see ``HostedProvider``.

    ``api_base`` precedes ``/responses``, so it usually ends with ``/v1``.
    """

    name: ClassVar[str] = DIALECT
    vendor_api_base: ClassVar[str] = DEFAULT_API_BASE
    key_variable: ClassVar[str] = "OPENAI_API_KEY"
    first_model: ClassVar[str] = DEFAULT_MODEL
    models_path: ClassVar[str] = "/models"

    key_headers = staticmethod(OpenAIProvider.key_headers)
    read_models = staticmethod(OpenAIProvider.read_models)

    def call(self, request: ModelInput, blobs: Blobs) -> Call:
        answer = ResponsesAnswer(ToolNames(request.tools).back())
        body = encode_body(responses_body(request, blobs, self.conversations))
        return Call("/responses", body, AnswerStream(answer))

    def accepts(self, model: str, media_type: str) -> bool:
        kind = kind_of(media_type)
        # The server passes a file to the model as text and as images of its pages.
        return kind == "text" or (kind is not None and sees_images(model))
