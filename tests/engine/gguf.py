"""Writes a tiny language model that a real engine loads: GGUF version 3, llama architecture, byte-fallback tokenizer.

The same bytes every time, from the standard library alone. Its text is readable words at random: one dimension of the embedding is a
constant, the output row of a word is positive there and that of a byte or a control token negative, so it never ends by itself. Called by
the engine tests. Source of the format: ggml's `docs/gguf.md`; of the keys and tensors: llama.cpp's `src/llama-arch.cpp`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

_TEXT = """
the a house gate lamp river stone cloud bread winter garden letter window morning silver quiet north road bell field apple door table
music paper light rain mountain summer kettle chair ocean forest candle bridge yellow small old young walks opens sings turns holds finds
brings under over beside between before after slowly gladly never often again
"""
WORDS = tuple(_TEXT.split())
CONTEXT_TOKENS = 32768

_WIDTH, _LAYERS, _HEADS, _HIDDEN = 128, 4, 4, 256
_ALIGNMENT = 32
_QUIET = 0.005
_CONSTANT = 4.0
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


class _Kind(IntEnum):
    """Value types of GGUF metadata."""

    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9


class _Token(IntEnum):
    """Token types of llama.cpp."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """A matrix of 32-bit floats; `shape` has the row length first, as ggml counts."""

    name: str
    shape: tuple[int, ...]
    values: list[float]


SAYINGS = tuple(f"\u2581{word}" for word in WORDS)
LETTERS = "abcdefghijklmnopqrstuvwxyz\u2581"


def write_model(path: Path, texts: tuple[str, ...] = SAYINGS) -> None:
    """Write the model (about 3 MB). `texts`: what it says; `tuple(LETTERS)` makes one that leaves its tokenizer no choice."""
    metadata = _metadata(texts)
    tensors = list(_tensors(random.Random(1), texts))
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)) + b"".join(metadata)
    bodies = [_padded(struct.pack(f"<{len(tensor.values)}f", *tensor.values)) for tensor in tensors]
    path.write_bytes(_padded(head + b"".join(_descriptions(tensors, bodies))) + b"".join(bodies))


def _metadata(texts: tuple[str, ...]) -> list[bytes]:
    tokens, types = _vocabulary(texts)
    return [
        _entry("general.architecture", _Kind.STRING, "llama"),
        _entry("general.name", _Kind.STRING, "tiny"),
        _entry("general.file_type", _Kind.UINT32, 0),
        _entry("llama.context_length", _Kind.UINT32, CONTEXT_TOKENS),
        _entry("llama.embedding_length", _Kind.UINT32, _WIDTH),
        _entry("llama.block_count", _Kind.UINT32, _LAYERS),
        _entry("llama.feed_forward_length", _Kind.UINT32, _HIDDEN),
        _entry("llama.attention.head_count", _Kind.UINT32, _HEADS),
        _entry("llama.attention.head_count_kv", _Kind.UINT32, _HEADS),
        _entry("llama.attention.layer_norm_rms_epsilon", _Kind.FLOAT32, 1e-5),
        _entry("llama.rope.dimension_count", _Kind.UINT32, _WIDTH // _HEADS),
        _entry("llama.rope.freq_base", _Kind.FLOAT32, 10000.0),
        _entry("llama.vocab_size", _Kind.UINT32, len(tokens)),
        _entry("tokenizer.ggml.model", _Kind.STRING, "llama"),
        _entry("tokenizer.ggml.pre", _Kind.STRING, "default"),
        _array("tokenizer.ggml.tokens", _Kind.STRING, tokens),
        _array("tokenizer.ggml.scores", _Kind.FLOAT32, [0.0] * len(tokens)),
        _array("tokenizer.ggml.token_type", _Kind.INT32, types),
        _entry("tokenizer.ggml.unknown_token_id", _Kind.UINT32, 0),
        _entry("tokenizer.ggml.bos_token_id", _Kind.UINT32, 1),
        _entry("tokenizer.ggml.eos_token_id", _Kind.UINT32, 2),
        _entry("tokenizer.ggml.add_bos_token", _Kind.BOOL, True),
        _entry("tokenizer.ggml.add_space_prefix", _Kind.BOOL, False),
        _entry("tokenizer.chat_template", _Kind.STRING, _CHAT_TEMPLATE),
    ]


def _vocabulary(texts: tuple[str, ...]) -> tuple[list[str], list[int]]:
    """Token texts and their types: three special ones, every byte (a missing one fails the load), then words with their space."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *texts]
    types = [_Token.UNKNOWN, _Token.CONTROL, _Token.CONTROL] + [_Token.BYTE] * 256 + [_Token.NORMAL] * len(texts)
    return tokens, [int(kind) for kind in types]


def _tensors(chance: random.Random, texts: tuple[str, ...]) -> Iterator[_Tensor]:
    rows = len(_vocabulary(texts)[0])
    yield _Tensor(name="token_embd.weight", shape=(_WIDTH, rows), values=_embedding(chance, rows))
    yield _Tensor(name="output.weight", shape=(_WIDTH, rows), values=_output(chance, rows, len(texts)))
    yield _ones("output_norm")
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        yield _ones(f"{block}.attn_norm")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield _noise(chance, f"{block}.{name}", _WIDTH, _WIDTH)
        yield _ones(f"{block}.ffn_norm")
        yield _noise(chance, f"{block}.ffn_gate", _WIDTH, _HIDDEN)
        yield _noise(chance, f"{block}.ffn_up", _WIDTH, _HIDDEN)
        yield _noise(chance, f"{block}.ffn_down", _HIDDEN, _WIDTH)


def _embedding(chance: random.Random, rows: int) -> list[float]:
    return [value for _ in range(rows) for value in (_CONSTANT, *(chance.gauss(0, 1) for _ in range(_WIDTH - 1)))]


def _output(chance: random.Random, rows: int, words: int) -> list[float]:
    first_word = rows - words
    return [
        value
        for row in range(rows)
        for value in (_CONSTANT if row >= first_word else -_CONSTANT, *(chance.gauss(0, 0.2) for _ in range(_WIDTH - 1)))
    ]


def _ones(name: str) -> _Tensor:
    return _Tensor(name=f"{name}.weight", shape=(_WIDTH,), values=[1.0] * _WIDTH)


def _noise(chance: random.Random, name: str, columns: int, rows: int) -> _Tensor:
    """Drawn once and then repeated from another start in each row: drawing is what takes time, and noise is noise."""
    drawn = [chance.gauss(0, _QUIET) for _ in range(4 * columns)]
    starts = [chance.randrange(3 * columns) for _ in range(rows)]
    values = [value for start in starts for value in drawn[start : start + columns]]
    return _Tensor(name=f"{name}.weight", shape=(columns, rows), values=values)


def _descriptions(tensors: Iterable[_Tensor], bodies: Iterable[bytes]) -> Iterator[bytes]:
    offset = 0
    for tensor, body in zip(tensors, bodies, strict=True):
        yield _string(tensor.name) + struct.pack(f"<I{len(tensor.shape)}QIQ", len(tensor.shape), *tensor.shape, 0, offset)
        offset += len(body)


def _entry(key: str, kind: _Kind, value: str | float) -> bytes:
    return _string(key) + struct.pack("<I", kind) + _value(kind, value)


def _array(key: str, kind: _Kind, values: list[str] | list[int] | list[float]) -> bytes:
    return _string(key) + struct.pack("<IIQ", _Kind.ARRAY, kind, len(values)) + b"".join(_value(kind, value) for value in values)


def _value(kind: _Kind, value: str | float) -> bytes:
    if isinstance(value, str):
        return _string(value)
    return struct.pack({_Kind.UINT32: "<I", _Kind.INT32: "<i", _Kind.FLOAT32: "<f", _Kind.BOOL: "<?"}[kind], value)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNMENT)
