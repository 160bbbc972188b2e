"""Writes a tiny language model that a real engine loads: GGUF version 3, llama architecture,
byte-fallback tokenizer.

The same bytes every time, from the standard library alone. Its text is readable words at random:
one dimension of the embedding is a constant, the output row of a word is positive there and that of
a byte or a control token negative, so it never ends by itself. Source of the format: ggml's
`docs/gguf.md`; of the keys and tensors: llama.cpp's `src/llama-arch.cpp`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

_TEXT = """
the a house gate lamp river stone cloud bread winter garden letter window morning silver quiet
north road bell field apple door table music paper light rain mountain summer kettle chair ocean
forest candle bridge yellow small old young walks opens sings turns holds finds brings under
over beside between before after slowly gladly never often again
"""
WORDS = tuple(_TEXT.split())
SAYINGS = tuple(f"\u2581{word}" for word in WORDS)
LETTERS = "abcdefghijklmnopqrstuvwxyz\u2581"
CONTEXT_TOKENS = 32768

_WIDTH = 128
_LAYERS = 4
_HEADS = 4
_HIDDEN = 256
_ALIGNMENT = 32
_QUIET = 0.005
_CONSTANT = 4.0
_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = range(4, 10)
"""Value types of GGUF metadata."""
_NORMAL = 1
_UNKNOWN = 2
_CONTROL = 3
_BYTE = 6
"""Token types of llama.cpp."""
Tensor = tuple[str, tuple[int, ...], list[float]]
"""A matrix of 32-bit floats: its name, its shape with the row length first, as ggml counts, and its
values.
"""


def write_model(
    path: Path, texts: tuple[str, ...] = SAYINGS, template: str = _CHAT_TEMPLATE, seed: int = 1
) -> None:
    """Write the model (about 3 MB).

    `texts`: what it says; `tuple(LETTERS)` makes one that leaves its tokenizer no choice.
    `template`: how conversations are rendered. `seed`: another one gives other weights.
    """
    # Three special tokens, every byte (a missing one fails the load), then words with their space.
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *texts]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL] + [_BYTE] * 256 + [_NORMAL] * len(texts)
    metadata = _metadata(tokens, kinds, template)
    tensors = list(_tensors(random.Random(seed), len(tokens), len(texts)))
    bodies = [_padded(struct.pack(f"<{len(values)}f", *values)) for _, _, values in tensors]
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)) + b"".join(metadata)
    offset = 0
    for (name, shape, _), body in zip(tensors, bodies, strict=True):
        head += _value(_STRING, name) + struct.pack(
            f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset
        )
        offset += len(body)
    path.write_bytes(_padded(head) + b"".join(bodies))


def _metadata(tokens: list[str], types: list[int], template: str) -> list[bytes]:
    entries: tuple[tuple[str, int, str | float], ...] = (
        ("general.architecture", _STRING, "llama"),
        ("general.name", _STRING, "tiny"),
        ("general.file_type", _UINT32, 0),
        ("llama.context_length", _UINT32, CONTEXT_TOKENS),
        ("llama.embedding_length", _UINT32, _WIDTH),
        ("llama.block_count", _UINT32, _LAYERS),
        ("llama.feed_forward_length", _UINT32, _HIDDEN),
        ("llama.attention.head_count", _UINT32, _HEADS),
        ("llama.attention.head_count_kv", _UINT32, _HEADS),
        ("llama.attention.layer_norm_rms_epsilon", _FLOAT32, 1e-5),
        ("llama.rope.dimension_count", _UINT32, _WIDTH // _HEADS),
        ("llama.rope.freq_base", _FLOAT32, 10000.0),
        ("llama.vocab_size", _UINT32, len(tokens)),
        ("tokenizer.ggml.model", _STRING, "llama"),
        ("tokenizer.ggml.pre", _STRING, "default"),
        ("tokenizer.ggml.unknown_token_id", _UINT32, 0),
        ("tokenizer.ggml.bos_token_id", _UINT32, 1),
        ("tokenizer.ggml.eos_token_id", _UINT32, 2),
        ("tokenizer.ggml.add_bos_token", _BOOL, True),
        ("tokenizer.ggml.add_space_prefix", _BOOL, False),
        ("tokenizer.chat_template", _STRING, template),
    )
    arrays: tuple[tuple[str, int, list[str] | list[int] | list[float]], ...] = (
        ("tokenizer.ggml.tokens", _STRING, tokens),
        ("tokenizer.ggml.scores", _FLOAT32, [0.0] * len(tokens)),
        ("tokenizer.ggml.token_type", _INT32, types),
    )
    return [
        *(
            _value(_STRING, key) + struct.pack("<I", kind) + _value(kind, value)
            for key, kind, value in entries
        ),
        *(
            _value(_STRING, key)
            + struct.pack("<IIQ", _ARRAY, kind, len(values))
            + b"".join(_value(kind, value) for value in values)
            for key, kind, values in arrays
        ),
    ]


def _tensors(chance: random.Random, rows: int, words: int) -> Iterator[Tensor]:
    def row(first: float, spread: float) -> list[float]:
        return [first, *(chance.gauss(0, spread) for _ in range(_WIDTH - 1))]

    def ones(name: str) -> Tensor:
        return f"{name}.weight", (_WIDTH,), [1.0] * _WIDTH

    def noise(name: str, columns: int, count: int) -> Tensor:
        """Drawn once and then repeated from another start in each row: drawing is what takes time,
        and noise is noise.
        """
        drawn = [chance.gauss(0, _QUIET) for _ in range(4 * columns)]
        starts = [chance.randrange(3 * columns) for _ in range(count)]
        return (
            f"{name}.weight",
            (columns, count),
            [value for start in starts for value in drawn[start : start + columns]],
        )

    yield (
        "token_embd.weight",
        (_WIDTH, rows),
        [value for _ in range(rows) for value in row(_CONSTANT, 1)],
    )
    signs = [_CONSTANT if number >= rows - words else -_CONSTANT for number in range(rows)]
    yield "output.weight", (_WIDTH, rows), [value for sign in signs for value in row(sign, 0.2)]
    yield ones("output_norm")
    for block in (f"blk.{layer}" for layer in range(_LAYERS)):
        yield ones(f"{block}.attn_norm")
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield noise(f"{block}.{name}", _WIDTH, _WIDTH)
        yield ones(f"{block}.ffn_norm")
        yield noise(f"{block}.ffn_gate", _WIDTH, _HIDDEN)
        yield noise(f"{block}.ffn_up", _WIDTH, _HIDDEN)
        yield noise(f"{block}.ffn_down", _HIDDEN, _WIDTH)


def _value(kind: int, value: str | float) -> bytes:
    if isinstance(value, str):
        data = value.encode()
        return struct.pack("<Q", len(data)) + data
    return struct.pack({_UINT32: "<I", _INT32: "<i", _FLOAT32: "<f", _BOOL: "<?"}[kind], value)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _ALIGNMENT)
