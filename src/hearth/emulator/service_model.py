"""How long a model takes to load, read a prompt and write an answer: the emulator's source of service times.

Pure arithmetic over profiles. It must never read a clock, sleep, draw randomness or know of HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hearth.errors import ModelNotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """One model on one card.

    Attributes:
        size_gib: the weights on disk.
        vram_gib: GPU memory held while loaded (weights, KV cache and buffers; at most what the card has).
        prompt_tokens_per_s, decode_tokens_per_s: single-stream rates.
        load_s: process start until the first request can run; unload_s: kill until the memory is free again.
        context_tokens: the longest context that the model was trained for.
        capabilities: in Ollama's words: completion, tools, insert, vision, embedding, thinking.
    """

    name: str
    size_gib: float
    vram_gib: float
    prompt_tokens_per_s: float
    decode_tokens_per_s: float
    load_s: float
    unload_s: float
    context_tokens: int = 32768
    family: str = "llama"
    parameter_size: str = "8.0B"
    quantization: str = "Q4_K_M"
    capabilities: tuple[str, ...] = ("completion",)
    embedding_length: int = 4096


class ServiceModel:
    """Service times in seconds for a set of models.

    Args:
        profiles: the models; a name without a tag means `:latest`.
        speed: divides every duration; 20 makes everything 20 times faster. Must be positive.
    """

    def __init__(self, profiles: Iterable[ModelProfile], *, speed: float = 1.0) -> None:
        if speed <= 0:
            raise ValueError("speed must be positive")
        self._profiles = {_tagged(profile.name): profile for profile in profiles}
        self._speed = speed

    @property
    def models(self) -> tuple[ModelProfile, ...]:
        return tuple(self._profiles.values())

    def profile(self, model: str) -> ModelProfile:
        """The profile of `model`; raises `ModelNotFound` for a name that has none."""
        found = self._profiles.get(_tagged(model))
        if found is None:
            raise ModelNotFound(f"no service profile for model '{model}'")
        return found

    def load_s(self, model: str, replaced: str | None = None) -> float:
        """Until `model` can run, including the removal of `replaced` where it has to make room."""
        freeing_s = self.unload_s(replaced) if replaced is not None else 0.0
        return freeing_s + self.profile(model).load_s / self._speed

    def unload_s(self, model: str) -> float:
        return self.profile(model).unload_s / self._speed

    def prompt_s(self, model: str, tokens: int) -> float:
        """Until the first output token, for a prompt that is not in the prompt cache."""
        return tokens / self.profile(model).prompt_tokens_per_s / self._speed

    def decode_s(self, model: str, tokens: int) -> float:
        return tokens / self.profile(model).decode_tokens_per_s / self._speed

    def service_s(self, model: str, prompt_tokens: int, output_tokens: int) -> float:
        """Execution on a loaded model: prompt and decode, no waiting and no swap."""
        return self.prompt_s(model, prompt_tokens) + self.decode_s(model, output_tokens)


def default_profiles() -> tuple[ModelProfile, ...]:
    """The models of a typical home with one 24 GB card (RTX 3090 class), single stream, 8k context.

    Rates of the 8B model: XiongjieDai/GPU-Benchmarks-on-LLM-Inference. The 32B q6_K weights (26.9 GB) do not fit and are split with
    the CPU, which costs about a factor of seven (ollama/ollama#17099). The 14B figures lie between the two (community reports of 48
    to 65 tokens/s). Load times assume a warm page cache at 4 to 9 GB/s and grow with the part that runs on the CPU.
    """
    return (_qwen_32b(), _qwen_coder_14b(), _llama_8b(), _nomic_embed())


def _qwen_32b() -> ModelProfile:
    return ModelProfile(
        name="qwen2.5:32b-instruct-q6_K",
        size_gib=25.0,
        vram_gib=22.5,
        prompt_tokens_per_s=200.0,
        decode_tokens_per_s=6.0,
        load_s=11.0,
        unload_s=1.2,
        context_tokens=32768,
        family="qwen2",
        parameter_size="32.8B",
        quantization="Q6_K",
        capabilities=("completion", "tools"),
        embedding_length=5120,
    )


def _qwen_coder_14b() -> ModelProfile:
    return ModelProfile(
        name="qwen2.5-coder:14b",
        size_gib=8.4,
        vram_gib=10.5,
        prompt_tokens_per_s=2000.0,
        decode_tokens_per_s=60.0,
        load_s=3.2,
        unload_s=1.0,
        context_tokens=32768,
        family="qwen2",
        parameter_size="14.8B",
        capabilities=("completion", "tools", "insert"),
        embedding_length=5120,
    )


def _llama_8b() -> ModelProfile:
    return ModelProfile(
        name="llama3.1:8b",
        size_gib=4.6,
        vram_gib=6.2,
        prompt_tokens_per_s=3865.0,
        decode_tokens_per_s=112.0,
        load_s=2.0,
        unload_s=0.8,
        context_tokens=131072,
        capabilities=("completion", "tools"),
    )


def _nomic_embed() -> ModelProfile:
    return ModelProfile(
        name="nomic-embed-text",
        size_gib=0.26,
        vram_gib=0.6,
        prompt_tokens_per_s=8000.0,
        decode_tokens_per_s=1.0,
        load_s=1.2,
        unload_s=0.5,
        context_tokens=2048,
        family="nomic-bert",
        parameter_size="137M",
        quantization="F16",
        capabilities=("embedding",),
        embedding_length=768,
    )


def _tagged(name: str) -> str:
    """Ollama's default tag, compared without regard to case."""
    folded = name.lower()
    return folded if ":" in folded.rsplit("/", 1)[-1] else f"{folded}:latest"
