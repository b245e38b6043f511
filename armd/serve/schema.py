"""What requests and answers hold: the fields, their limits and what they mean."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _readable(text: str) -> str:
    """JSON can escape halves of a character that no UTF-8 holds."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half a surrogate pair is no character; send whole ones") from None
    return text


Text = Annotated[str, AfterValidator(_readable)]

Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[Token], Field(max_length=65536, fail_fast=True)]
"""fail_fast: of a list of wrong entries the first is named; a list of all would take seconds."""
OrderName = Literal["left_to_right", "strided", "random"]
Streams = Annotated[int, Field(ge=1, le=1024)]
Number = TypeVar("Number", int, float)
OrOne = Annotated[Number, BeforeValidator(lambda value: 1 if value is None else value)]
"""OpenAI's clients send null where nothing was said."""


class Body(BaseModel):
    """Unknown fields are refused: a misspelt one would do nothing, silently."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


class Choosing(Body):
    """How tokens are chosen, and in which order."""

    temperature: OrOne[float] = Field(
        1.0, ge=0, le=100, description="0 takes the most probable token."
    )
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=1, le=2**31)
    min_p: float | None = Field(None, gt=0, le=1)
    repetition_penalty: OrOne[float] = Field(1.0, ge=0.01, le=100)
    streams: OrOne[Streams] = Field(1, description="Tokens drawn in one call of the model.")
    order: OrderName | Tokens | None = Field(
        None,
        description="Of the new tokens: strided runs (left to right for one stream), random, or "
        "their numbers from 0, in the order in which to draw them, `streams` a call.",
    )
    seed: Seed | None = Field(None, description="The same seed gives the same text.")


class StreamOptions(Body):
    include_usage: bool | None = False
    include_obfuscation: bool | None = None


class Asking(Choosing):
    """What OpenAI's requests for texts and for chats have in common."""

    model: Text | None = Field(None, max_length=1000)
    n: int | None = Field(1, ge=1, le=64)
    stop: (
        Annotated[Text, Field(max_length=200)]
        | Annotated[
            list[Annotated[Text, Field(max_length=200)]], Field(max_length=16, fail_fast=True)
        ]
        | None
    ) = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    frequency_penalty: float | None = Field(0, ge=0, le=0, description="Only 0.")
    presence_penalty: float | None = Field(0, ge=0, le=0, description="Only 0.")
    logit_bias: dict[str, float] | None = Field(None, max_length=0)
    user: Text | None = Field(None, max_length=1000)


class CompletionRequest(Asking):
    """As OpenAI's, with `streams`, `order`, `top_k`, `min_p` and `repetition_penalty` besides."""

    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=64, fail_fast=True)]
        | Tokens
        | Annotated[list[Tokens], Field(min_length=1, max_length=64, fail_fast=True)]
        | None
    ) = ""
    suffix: Text | None = Field(None, description="What stands behind the text to be written.")
    max_tokens: int | None = Field(
        16, ge=0, le=2**31, description="Cut to what fits behind the prompt."
    )
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool | None = Field(False, description="With logprobs: of the prompt, too.")
    best_of: int | None = Field(None, ge=1, le=64, description="At most n: all are returned.")


class LogProbs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class Choice(BaseModel):
    index: int
    text: str
    logprobs: LogProbs | None = None
    finish_reason: Literal["stop", "length"] | None
    cut: Literal["time", "shutdown"] | None = None
    """Set where the server ended the text early."""


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class TokenizeRequest(Body):
    text: Text
    continues: bool = Field(
        False, description="It stands behind other text: no space is put before it."
    )


class Tokenized(BaseModel):
    tokens: list[int]
    pieces: list[str]


class InfillRequest(Choosing):
    """One of: `text` with blanks, `tokens` with `known`, or `prompt` with `max_tokens`."""

    model: Text | None = Field(None, max_length=1000)
    text: Text | None = Field(None, description="Blanks are two or more underscores.")
    blank: Text | None = Field(None, min_length=1, max_length=50, description="Another mark.")
    blank_length: (
        Annotated[int, Field(ge=1, le=2**31)]
        | Annotated[
            list[Annotated[int, Field(ge=1, le=2**31)]], Field(max_length=1024, fail_fast=True)
        ]
    ) = Field(8, description="Tokens of a blank: one number for all, or one for each.")
    tokens: Tokens | None = None
    known: Annotated[list[bool], Field(max_length=65536, fail_fast=True)] | None = None
    prompt: Text | None = None
    max_tokens: int | None = Field(None, ge=1, le=2**31)
    rivals: int = Field(
        0, ge=0, le=8, description="Most probable tokens to give beside each token."
    )
    stream: bool = True


class OrderShape(BaseModel):
    position: list[int]
    block: list[int]


class TopTokenShape(BaseModel):
    token: int
    piece: str
    logprob: float


class LandedShape(BaseModel):
    position: int
    token: int
    piece: str
    logprob: float
    rivals: list[TopTokenShape]


class StartEvent(BaseModel):
    type: Literal["start"] = "start"
    tokens: list[int | None]
    pieces: list[str | None]
    known: list[bool]
    order: OrderShape
    steps: int
    seed: int


class StepEvent(BaseModel):
    type: Literal["step"] = "step"
    step: int
    at: list[LandedShape]
    seconds: float


class EndEvent(BaseModel):
    type: Literal["end"] = "end"
    text: str
    tokens: list[int | None]
    calls: int
    seconds: float
    tokens_per_second: float
    finish_reason: Literal["length", "stop"]
    cut: Literal["time", "shutdown"] | None = None


class Infilled(BaseModel):
    start: StartEvent
    steps: list[StepEvent]
    end: EndEvent


class GivenOrder(Body):
    position: Annotated[list[int], Field(max_length=65536, fail_fast=True)]
    block: Annotated[list[int], Field(max_length=65536, fail_fast=True)]


class ScoreRequest(Body):
    """A text or its tokens, and the order in which to read them."""

    model: Text | None = Field(None, max_length=1000)
    text: Text | None = None
    tokens: Tokens | None = None
    order: OrderName | GivenOrder = "left_to_right"
    streams: Streams = 1
    seed: Seed | None = None


class Scored(BaseModel):
    log_likelihood: float
    tokens: list[int]
    pieces: list[str]
    logprobs: list[float]
    perplexity: float
    order: OrderShape


class OrderRequest(Body):
    """An order to be looked at."""

    kind: Literal["left_to_right", "strided", "random", "infill", "masking", "shuffled"]
    length: int = Field(ge=1, le=512)
    streams: Streams = 1
    steps: int = Field(8, ge=1, le=4096)
    rho: int = Field(0, ge=0, le=512)
    known: Annotated[list[bool], Field(max_length=512, fail_fast=True)] | None = None
    seed: Seed | None = None


class Health(BaseModel):
    status: Literal["ok", "stopping"]


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["armd"] = "armd"


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class LimitsShape(BaseModel):
    max_streams: int
    max_body: int
    queue: int
    slots: int


class Info(BaseModel):
    model: str
    max_length: int
    vocab_size: int
    any_order: bool
    chat: bool
    """It has a chat template, and so /v1/chat/completions."""
    n_layers: int
    n_two_stream: int
    parameters: int
    eos: int | None
    limits: LimitsShape


Json = dict[str, Any]
FIELDS = sorted(
    {
        name
        for kind in (CompletionRequest, InfillRequest, ScoreRequest, OrderRequest, TokenizeRequest)
        for name in kind.model_fields
    }
    | {"messages", "max_completion_tokens", "top_logprobs"}
)
"""All fields of all requests, for those who misspell one."""
