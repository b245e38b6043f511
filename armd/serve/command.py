"""`armd serve`: a model behind an address, until it is stopped."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from ..errors import ArmdError
from ..runtime.standard_streams import to_nowhere
from .limits import Limits

if TYPE_CHECKING:
    from .service import Service


@dataclass(frozen=True)
class Serving:
    """Serve a model: OpenAI's completions, infilling, scores, and a page to watch."""

    model: tyro.conf.Positional[str]
    """A training run, or a folder of save_pretrained with its tokenizer."""
    host: str = "127.0.0.1"
    """The address to listen at; by default only this machine can reach it."""
    port: int = 8000
    """0 takes a free one."""
    slots: Annotated[int, tyro.conf.arg(aliases=["--places"])] = Limits.slots
    """Sequences decoded together."""
    queue: int = Limits.queue
    """Texts that may wait for a slot; above that, clients are asked to come again."""
    weights: Literal["fp32", "bf16", "int8", "q8", "q4", "plain"] = "fp32"
    """As for `armd generate`."""
    cache: Literal["fp32", "bf16"] = "fp32"
    """As for `armd generate`."""
    timeout: float = Limits.timeout
    """A request that exceeds this many seconds returns its partial text."""
    grace: float = 10.0
    """Seconds that running requests have when the server is stopped."""
    max_body: int = Limits.max_body
    """Bytes that a request may have."""
    step_tokens: int = Limits.step_tokens
    """Tokens that a request may have drawn in one decode step, such as by so many streams; others
    wait for that step."""
    name: str | None = None
    """What clients call the model; by default its folder's name."""
    threads: int | None = Limits.threads
    """CPU threads of a pass; by default one for a small model, else one a core."""
    api_key: str | None = None
    """Answer only to clients that send this key (Authorization: Bearer KEY); a browser asks for it
    as a password. Also from the environment variable ARMD_API_KEY."""
    connections: int | None = None
    """Connections at a time; by default as many as files may be open, at most 1000."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""


LIMITS: dict[str, tuple[float, float]] = {
    "slots": (1, 4096),
    "max_body": (1, 1 << 30),
    "step_tokens": (1, 1 << 20),
    "threads": (1, 1024),
    "queue": (0, 10**6),
    "grace": (0, 10**6),
    "timeout": (0, 10**6),
    "port": (0, 65535),
    "connections": (8, 10**6),
}


def check(job: Serving) -> None:
    for name, (low, high) in LIMITS.items():
        value = getattr(job, name)
        if value is not None and not low <= value <= high:
            flag = f"--{name.replace('_', '-')}"
            raise ArmdError(f"{flag} {value} must be between {low:,} and {high:,}")
    key_of(job)


def key_of(job: Serving) -> str | None:
    """What clients must send, if anything. An empty key is a mistake, such as a variable that is
    not set, and must not open the server to everybody."""
    key = os.environ.get("ARMD_API_KEY") if job.api_key is None else job.api_key
    if key is not None and not re.fullmatch(r"[!-~]+", key):
        raise ArmdError(
            "--api-key or ARMD_API_KEY must be one or more ASCII letters without spaces, so that "
            "a header can carry it; leave it out to serve everybody"
        )
    return key


def serve(job: Serving) -> None:
    """Load, warm up, listen; Ctrl-C, SIGTERM or SIGHUP ends it."""
    check(job)
    try:
        import fastapi as _fastapi  # noqa: F401
        import uvicorn as _uvicorn  # noqa: F401
    except ImportError:
        raise ArmdError("serving needs more packages; pip install 'armd[serve]'") from None
    from .connections import LimitedProtocol, most_connections
    from .server import Server, listening

    if job.connections is not None:
        LimitedProtocol.limit = most_connections(job.connections)
        if LimitedProtocol.limit < job.connections:
            raise ArmdError(
                f"--connections {job.connections} needs more open files than there may be; lower "
                f"it to {LimitedProtocol.limit}, or raise their limit: ulimit -n"
            )
    with listening(job.host, job.port) as opened:
        service = load(job)
        from .app import make_app

        bound, port = opened.getsockname()[:2]
        app = make_app(service, host=job.host, api_key=key_of(job), bound=bound)
        ready = partial(say, job, service, port, bound)
        Server(service, app, grace=job.grace, ready=ready).run(sockets=[opened])
    service.stop()
    service.engine.join(30)


def load(job: Serving) -> Service:
    """The service: model with packed weights, tokenizer, KV caches; warmed up."""
    from ..checked_pack import pack_loaded
    from ..data.chat_template import ChatTemplate
    from ..model.modeling_armd import ArmdLM
    from ..native.linear import count_weights
    from ..pretrained import load_model, load_tokenizer, model_folder
    from .service import Service

    model = load_model(job.model, device=job.device)
    if not isinstance(model, ArmdLM):
        raise ArmdError(
            f"{job.model} is a baseline that writes whole texts; serve a run of our model, or use "
            "armd generate"
        )
    tokenizer = load_tokenizer(job.model, vocab_size=model.config.vocab_size)
    limits = Limits(**{field.name: getattr(job, field.name) for field in fields(Limits)})
    parameters = count_weights(model)
    service = Service(
        pack_loaded(model, job.weights, job.cache),
        tokenizer,
        name=job.name or name_of(job.model),
        parameters=parameters,
        limits=limits,
        chat=ChatTemplate.find(model_folder(job.model)),
    )
    warm_up(service)
    return service


def name_of(path: str) -> str:
    """A run's own name: the folder's, or its parent's where it is just called run or export."""
    whole = Path(path).resolve()
    return next(
        (p.name for p in (whole, *whole.parents) if p.name not in ("run", "export")), "armd"
    )


def warm_up(service: Service) -> None:
    """Write a few tokens in every slot, and render a chat: the first client need not wait."""
    import gc

    import torch

    from ..generation.plan import from_prompts
    from ..model.sampling import Sampling
    from .events import Failed, StepEvent
    from .metrics import Metrics
    from .outbox import call
    from .requests import GenerationRequest

    engine, left = service.engine, [service.limits.slots]
    over, failures = threading.Event(), []

    def listen(event: Any) -> None:
        if isinstance(event, Failed):
            failures.append(event.message)
        if not isinstance(event, StepEvent):
            left[0] -= 1
            over.set() if not left[0] else None

    length = min(4, service.model.config.max_length)
    deliver, engine.outbox.deliver = engine.outbox.deliver, call
    (plan,) = from_prompts(None, length=length)
    request = GenerationRequest(plan, Sampling(), torch.Generator().manual_seed(0), listen)
    engine.submit([request] * service.limits.slots)
    if not over.wait(300):
        raise ArmdError("the model did not write its first tokens within 300 s; try a smaller one")
    if failures:
        raise ArmdError(f"the model cannot write: {failures[0]}")
    engine.outbox.deliver, engine.metrics = deliver, Metrics()
    if service.chat is not None:
        service.chat.warm_up()
    gc.collect()
    gc.freeze()  # what was loaded stays: no need to look through it again and again


def say(job: Serving, service: Service, port: int, bound: str) -> None:
    """Ready, and where."""
    from .security import is_loopback

    if not is_loopback(bound) and key_of(job) is None:
        said = f"armd: warning: listening on {job.host} without --api-key: other machines can"
        with contextlib.suppress(OSError):  # a log on a full disk
            print(f"{said} connect and use it", file=sys.stderr)
    host = f"[{job.host}]" if ":" in job.host else job.host
    weights = getattr(service.model, "weights", job.weights)  # a quantized folder has its own
    ready = f"{service.name} is ready at http://{host}:{port}"
    try:
        print(f"{ready} ({service.limits.slots} slots, {weights} weights)", flush=True)
    except OSError:  # a full disk, or a reader that has left: clients need neither
        to_nowhere(1)
