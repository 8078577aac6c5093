"""Files attached to a user's text: which models accept them, and how they are encoded. Pure.

Servers do not reliably report which models see images, and a refusal would come too late, in the middle
of a run. So a small table of name prefixes lists the models that do not. A model that is not in the
table is assumed to see images, as almost all new models do.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Final, Literal

from nousd.providers.interface import Blobs
from nousd.providers.models.names import row_of
from nousd.wire.objects.entries import Attachment
from nousd.wire.objects.media_types import bare

Kind = Literal["image", "pdf", "text"]

IMAGE_TYPES: Final = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
PDF_TYPE: Final = "application/pdf"

SEES_IMAGES: Final[dict[str, bool]] = {
    "claude-2": False,
    "claude-instant": False,
    "codellama": False,
    "codestral": False,
    "command-r": False,
    "deepseek": False,
    "deepseek-vl": True,
    "devstral": False,
    "gemma-2": False,
    "gemma2": False,
    "glm-4": False,
    "glm-4.1v": True,
    "glm-4.5v": True,
    "glm-4v": True,
    "gpt-3.5": False,
    "gpt-4": False,
    "gpt-4-turbo": True,
    "gpt-4-turbo-preview": False,
    "gpt-4-vision": True,
    "gpt-4.1": True,
    "gpt-4.5": True,
    "gpt-4o": True,
    "gpt-oss": False,
    "grok-3": False,
    "kimi-k2": False,
    "kimi-k2.5": True,
    "llama-2": False,
    "llama-3": False,
    "llama-3.2-11b": True,
    "llama-3.2-90b": True,
    "llama2": False,
    "llama3": False,
    "llama3.2-vision": True,
    "mistral-7b": False,
    "mistral:": False,
    "mixtral": False,
    "o1-mini": False,
    "o1-preview": False,
    "o3-mini": False,
    "phi-3": False,
    "phi-3-vision": True,
    "phi-3.5-vision": True,
    "phi-4": False,
    "phi-4-multimodal": True,
    "phi3": False,
    "phi4": False,
    "qwen2": False,
    "qwen2-vl": True,
    "qwen2.5-omni": True,
    "qwen2.5-vl": True,
    "qwen2.5vl": True,
    "qwen3": False,
    "qwen3-omni": True,
    "qwen3-vl": True,
    "qwen3.5": True,
    "qwq": False,
    "starcoder": False,
}
"""Prefix of a model's name -> whether it sees images."""


def kind_of(media_type: str) -> Kind | None:
    """Return the kind of a media type, or None if no model accepts it."""
    plain = bare(media_type)
    if plain in IMAGE_TYPES:
        return "image"
    if plain == PDF_TYPE:
        return "pdf"
    return "text" if plain.startswith("text/") else None


def sees_images(model: str) -> bool:
    """Return whether the model accepts images."""
    return row_of(SEES_IMAGES, model, otherwise=True)


def name_of(attachment: Attachment) -> str:
    """Return the file name to show to the model."""
    return attachment.name or {"image": "image", "pdf": "document.pdf"}.get(
        kind_of(attachment.media_type) or "", "attachment.txt"
    )


def base64_of(attachment: Attachment, blobs: Blobs) -> str:
    """Return the bytes as base64."""
    return b64encode(blobs[attachment.artifact_id]).decode()


def data_url(attachment: Attachment, blobs: Blobs) -> str:
    """Return the bytes as a ``data:`` URL."""
    return f"data:{bare(attachment.media_type)};base64,{base64_of(attachment, blobs)}"


def text_of(attachment: Attachment, blobs: Blobs) -> str:
    """Return the content of a text file; invalid UTF-8 becomes U+FFFD."""
    return blobs[attachment.artifact_id].decode("utf-8-sig", "replace")


def inline_text(attachment: Attachment, blobs: Blobs) -> str:
    """Return a text file as text that begins with its name, for servers that accept no text files."""
    return f"Attached file {name_of(attachment)}:\n\n{text_of(attachment, blobs)}"
