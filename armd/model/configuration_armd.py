"""How large the model is, and which of the paper's choices it makes."""

from typing import Any

from transformers import PreTrainedConfig

from .errors import ArmdError

# name -> layers, width, heads; small and medium are GPT-2's, as in the paper
SIZES = {"tiny": (4, 128, 4), "mini": (6, 256, 4), "small": (12, 768, 12), "medium": (24, 1024, 16)}
QUERIES = ("prefix", "mean", "shift", "neighbor")
SIZE_FIELDS = ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "max_length", "d_ff")
SIZE_FIELDS += ("d_pe",)
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class ArmdConfig(PreTrainedConfig):
    """Sizes and choices; each field says what it means."""

    model_type = "armd"
    attribute_map = {  # noqa: RUF012 - under which names other tools look for our sizes
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "num_key_value_heads": "n_kv_heads",
        "max_position_embeddings": "max_length",
    }

    vocab_size: int = 50257
    """Tokens the model can write."""
    d_model: int = 768
    """Width of a row."""
    n_layers: int = 12
    """L, the depth."""
    n_two_stream: int = None  # type: ignore[assignment]
    """L2s, how many of the first layers carry both streams: 1..n_layers; half if not given. With
    query "neighbor" always n_layers."""
    n_heads: int = 12
    n_kv_heads: int = None  # type: ignore[assignment]
    """Heads of keys and values, each read by n_heads / n_kv_heads query heads; n_heads if None."""
    d_head: int = None  # type: ignore[assignment]
    """Width of a head; d_model / n_heads if not given."""
    max_length: int = 1024
    """The longest text, in tokens."""
    d_ff: int = None  # type: ignore[assignment]
    """Width of the SwiGLU; 8/3 of d_model, rounded up to a multiple of 64, if not given."""
    d_pe: int = None  # type: ignore[assignment]
    """Width of the position code of prefix aggregation; a quarter of d_model if not given."""
    query: str = "prefix"
    """Where the query stream starts: "prefix" aggregation, the "mean" of what a row sees, the
    "neighbor", which is the token at the position before where that is known, or "shift", the
    same left to right alone: an ordinary autoregressive model."""
    dropout: float = 0.02
    """On embeddings and residual branches; not in attention, which would lose its fast kernel."""
    qkv_bias: bool = False
    """Biases on queries, keys and values."""
    right_bias: bool = False
    """With query "neighbor": a learned number for each layer and head, added to attention scores of
    keys whose position is to the right of the query's. Left to right there are none."""
    right_offset: int = 0
    """With query "neighbor": keys to the right of a row are read as if they stood so many positions
    further left, as text before it; those even further right, as often as it takes. 0: where they
    stand."""
    adapter_rank: int = 0
    """With query "neighbor": rank of a change to each linear layer that only rows out of order
    take, those that do not see exactly the tokens before them. Left to right there are none."""
    rope_base: float = 10000.0
    rope_llama3: dict[str, float] | None = None
    """Scaling of RoPE as in Llama 3: factor, low_freq_factor, high_freq_factor and
    original_max_position_embeddings; None for none."""
    norm_eps: float = 1e-5
    init_std: float = 0.02
    """Spread of the initial embeddings; linear layers start with unit gain, 1/sqrt(fan_in)."""
    pe_std: float | None = None
    """Spread of the position MLP's initial weights; 1/sqrt(fan_in), unit gain, if not given."""
    tie_word_embeddings: bool = True
    """The head is the embedding; otherwise a matrix of its own."""
    eos_token_id: int | None = None
    """The token that ends a text, for those who write with the model without armd."""
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.query == "neighbor":
            self.n_two_stream = self.n_layers
        elif self.n_two_stream is None:
            self.n_two_stream = max(1, self.n_layers // 2)
        if self.n_kv_heads is None:
            self.n_kv_heads = self.n_heads
        if self.d_head is None and self.n_heads >= 1:
            self.d_head = self._usual_head_width()
        if self.d_ff is None:
            self.d_ff = -(-8 * self.d_model // 192) * 64
        if self.d_pe is None:
            self.d_pe = max(1, self.d_model // 4)
        super().__post_init__(**kwargs)  # sets what has another name in other tools
        self._check()

    @classmethod
    def named(cls, size: str, **changes: Any) -> "ArmdConfig":
        """One of the named sizes, with any field changed."""
        if size not in SIZES:
            raise ArmdError(f"no size '{size}'; use one of {', '.join(SIZES)}")
        layers, width, heads = SIZES[size]
        return cls(**{"n_layers": layers, "d_model": width, "n_heads": heads, **changes})

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As transformers', but another model's config is refused, not read as our defaults."""
        kind = config_dict.get("model_type", cls.model_type)
        if kind != cls.model_type:
            raise ArmdError(
                f"this is a checkpoint of '{kind}', not of {cls.model_type}; name a folder of that"
            )
        return super().from_dict(config_dict, **kwargs)

    def _usual_head_width(self) -> int:
        if self.d_model % (2 * self.n_heads):
            raise ArmdError(
                f"d_model {self.d_model} must be divisible by twice n_heads {self.n_heads}, "
                "so that each head has an even width to rotate; or give d_head"
            )
        return self.d_model // self.n_heads

    def _check(self) -> None:
        for name in SIZE_FIELDS:
            if getattr(self, name) < 1:
                raise ArmdError(f"{name} {getattr(self, name)} must be at least 1")
        if not 1 <= self.n_two_stream <= self.n_layers:
            raise ArmdError(
                f"n_two_stream {self.n_two_stream} must be between 1 and n_layers {self.n_layers}"
            )
        if self.n_heads % self.n_kv_heads:
            raise ArmdError(
                f"n_heads {self.n_heads} must be divisible by n_kv_heads {self.n_kv_heads}"
            )
        if self.d_head % 2:
            raise ArmdError(f"d_head {self.d_head} must be even, so that RoPE can rotate pairs")
        if self.query not in QUERIES:
            raise ArmdError(f"no query '{self.query}'; use one of {', '.join(QUERIES)}")
        if self.right_bias and self.query not in ("neighbor", "shift"):
            raise ArmdError(f"right_bias needs query 'neighbor', not '{self.query}'; leave it out")
        if self.right_offset and self.query not in ("neighbor", "shift"):
            raise ArmdError(
                f"right_offset needs query 'neighbor', not '{self.query}'; leave it out"
            )
        if not 0 <= self.right_offset <= self.max_length:
            raise ArmdError(
                f"right_offset {self.right_offset} must be between 0 and max_length "
                f"{self.max_length}"
            )
        if self.adapter_rank and self.query not in ("neighbor", "shift"):
            raise ArmdError(
                f"adapter_rank needs query 'neighbor', not '{self.query}'; leave it out"
            )
        if not 0 <= self.adapter_rank <= self.d_model:
            raise ArmdError(
                f"adapter_rank {self.adapter_rank} must be between 0 and d_model {self.d_model}"
            )
        self._check_rope()
        if not 0 <= self.dropout < 1:
            raise ArmdError(f"dropout {self.dropout} must be at least 0 and below 1")

    def _check_rope(self) -> None:
        numbers: dict[str, Any] = {"rope_base": self.rope_base}
        if self.rope_llama3 is not None:
            if not isinstance(self.rope_llama3, dict) or not set(LLAMA3) <= set(self.rope_llama3):
                raise ArmdError(f"rope_llama3 must have the keys {', '.join(LLAMA3)}")
            numbers |= {name: self.rope_llama3[name] for name in LLAMA3}
        for name, value in numbers.items():
            if type(value) not in (int, float) or not 0 < value < 1e18:
                raise ArmdError(f"{name} '{str(value)[:40]}' must be a number above 0")


# so that save_pretrained ships the code, and the folder loads where armd is not installed
ArmdConfig.register_for_auto_class()
