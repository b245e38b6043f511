"""What a chat's request and answer hold, as OpenAI's."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from .schema import Asking, Body, Text, Usage


class TextPart(Body):
    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """One turn. Clients send more fields, such as a name or a refusal; they change nothing."""

    model_config = ConfigDict(extra="ignore", strict=True)
    role: Annotated[Text, Field(max_length=100)]
    content: Text | Annotated[list[TextPart], Field(max_length=1000, fail_fast=True)]

    @property
    def plain(self) -> dict[str, str]:
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": self.role, "content": text}


class ResponseFormat(Body):
    type: Literal["text"] = "text"


class ChatRequest(Asking):
    """As OpenAI's, with `streams`, `order`, `top_k`, `min_p` and `repetition_penalty` besides."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=1000, fail_fast=True)]
    max_tokens: int | None = Field(
        None, ge=1, le=2**31, description="Left out, as many as fit; more are cut to that."
    )
    max_completion_tokens: int | None = Field(None, ge=1, le=2**31)
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: Annotated[list[None], Field(max_length=0, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None


class ChatMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str


class ChatTop(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(ChatTop):
    top_logprobs: list[ChatTop]


class ChatLogProbs(BaseModel):
    content: list[ChatToken]


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogProbs | None = None
    finish_reason: Literal["stop", "length"]
    cut: Literal["time", "shutdown"] | None = None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
