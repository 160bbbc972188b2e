"""How long a recording is, by the header of its container."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from math import inf

import pytest

from hearth.dialects.audio import SPEECH_BYTES_PER_S, Audio, audio_in
from hearth.types import DAY_S


def found(content: bytes) -> Audio | None:
    reads = list[int]()

    def read(place: int, size: int) -> bytes:
        reads.append(size)
        assert place >= 0
        assert size >= 0  # a file is not read backwards
        return content[place : place + size]

    audio = audio_in(read, len(content))
    assert len(reads) < 1000
    assert max(reads) <= 64 * 1024
    return audio


def wav(data: bytes, said: int | None = None) -> bytes:
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 16_000, 2, 16)
    other = struct.pack("<4sI", b"LIST", 3) + b"abc\0"
    size = len(data) if said is None else said
    return b"RIFF\0\0\0\0WAVE" + other + form + struct.pack("<4sI", b"data", size) + data


def flac(samples: int) -> bytes:
    packed = (44_100 << 44) | (1 << 41) | (15 << 36) | samples
    return b"fLaC\0\0\0\x22" + bytes(10) + struct.pack(">Q", packed) + bytes(200_000)


def page(granule: int, packet: bytes) -> bytes:
    return (
        b"OggS\0\0"
        + struct.pack("<q", granule)
        + bytes(12)
        + b"\x01"
        + (bytes([min(255, len(packet))]) + packet)
    )


OPUS = b"OpusHead\x01\x01" + struct.pack("<H", 312) + bytes(7)
VORBIS = b"\x01vorbis" + bytes(5) + struct.pack("<I", 22_050) + bytes(14)
FRAME = b"\xff\xfb\x90\x00"
"""Of MP3: version 1, 128 kbit/s, 44,100 Hz, two channels."""


def mp3(tag: bytes = b"", *, id3: bytes = b"", frames: int = 100) -> bytes:
    frame = FRAME + bytes(32) + tag
    return id3 + frame.ljust(417, b"\0") + (FRAME + bytes(413)) * (frames - 1)


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


def mp4(scale: int, units: int, *, version: int = 0, media_first: bool = False) -> bytes:
    times = bytes(8) if version == 0 else bytes(16)
    length = struct.pack(">II" if version == 0 else ">IQ", scale, units)
    moov = box(b"moov", box(b"mvhd", bytes([version, 0, 0, 0]) + times + length + bytes(80)))
    mdat = struct.pack(">I4sQ", 1, b"mdat", 16 + 100_000) + bytes(100_000)
    parts = (mdat, moov) if media_first else (moov, mdat)
    return box(b"ftyp", b"M4A \0\0\0\0") + b"".join(parts)


def element(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">Q", (1 << 56) | len(content)) + content


def webm(
    *, duration: bytes = b"", live: bool = False, nanoseconds: bytes = b"\x0f\x42\x40"
) -> bytes:
    scale = element(b"\x2a\xd7\xb1", nanoseconds)
    length = element(b"\x44\x89", duration) if duration else b""
    info = element(b"\x15\x49\xa9\x66", scale + length)
    content = info + element(b"\x1f\x43\xb6\x75", bytes(100_000))
    head = element(b"\x1a\x45\xdf\xa3", b"\x42\x86\x81\x01")
    if live:
        return head + b"\x18\x53\x80\x67\x01" + b"\xff" * 7 + content
    return head + element(b"\x18\x53\x80\x67", content)


def webm_of(info: bytes) -> bytes:
    head = element(b"\x1a\x45\xdf\xa3", b"\x42\x86\x81\x01")
    return head + element(b"\x18\x53\x80\x67", element(b"\x15\x49\xa9\x66", info) + bytes(4000))


XING = b"Xing" + struct.pack(">II", 1, 1000)
KNOWN = {
    "wav": (wav(bytes(32_000)), "wav", 2.0),
    "wav of a recorder that ended early": (wav(bytes(16_000), said=0xFFFFFFFF), "wav", 1.0),
    "wav without sound": (wav(b""), "wav", 0.0),
    "flac": (flac(441_000), "flac", 10.0),
    "opus": (page(0, OPUS) + page(48_000 * 3 + 312, bytes(9_000)), "ogg", 3.0),
    "vorbis": (page(0, VORBIS) + page(22_050 * 4, bytes(9_000)), "ogg", 4.0),
    "opus whose last page ends no packet": (
        page(0, OPUS) + page(48_312, bytes(200)) + page(-1, bytes(200)),
        "ogg",
        1.0,
    ),
    "mp3 of one rate": (mp3(), "mp3", 2.6),
    "mp3 with the count of its frames": (mp3(XING), "mp3", 26.1),
    "mp3 without the count that it has a place for": (
        mp3(b"Xing" + struct.pack(">II", 1, 0)),
        "mp3",
        2.6,
    ),
    "mp3 behind a title": (mp3(id3=b"ID3\x04\0\0\0\0\x01\x00" + bytes(128)), "mp3", 2.6),
    "m4a": (mp4(1000, 12_500), "mp4", 12.5),
    "m4a whose head is at its end": (mp4(1000, 12_500, media_first=True), "mp4", 12.5),
    "mp4 of the long form": (mp4(90_000, 180_000, version=1), "mp4", 2.0),
    "webm": (webm(duration=struct.pack(">d", 7500.0)), "webm", 7.5),
    "webm of a recorder": (webm(duration=struct.pack(">f", 1500.0), live=True), "webm", 1.5),
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_header_says_how_long_a_recording_is(name: str):
    content, container, seconds = KNOWN[name]
    audio = found(content)
    assert audio is not None
    assert (audio.container, audio.is_exact) == (container, True)
    assert audio.duration_s == pytest.approx(seconds, abs=0.05)


UNSAID = {
    "flac": flac(0),
    "ogg of another codec": page(0, b"Speex   ") + bytes(4000),
    "m4a in fragments": mp4(1000, 0),
    "m4a without a head": box(b"ftyp", b"M4A ") + box(b"mdat", bytes(4000)),
    "webm of a browser": webm(live=True),
    "webm of no number": webm(duration=struct.pack(">f", inf), nanoseconds=b"\0"),
    "webm whose last head reaches over its end": webm_of(b"\x44\x89\x01"),
    "wav without a format": b"RIFF\0\0\0\0WAVE" + struct.pack("<4sI", b"data", 4) + bytes(4000),
    "wav cut within its head": b"RIFF\0\0\0\0WAVEfmt ",
    "aac": b"\xff\xf1" + bytes(4000),
    "amr": b"#!AMR\n" + bytes(4000),
}


@pytest.mark.parametrize("name", UNSAID)
def test_what_no_header_says_the_size_tells(name: str):
    audio = found(UNSAID[name])
    assert audio is not None
    assert not audio.is_exact
    assert audio.duration_s == len(UNSAID[name]) / SPEECH_BYTES_PER_S


def test_a_header_that_claims_years_is_not_believed():
    audio = found(mp4(1, 2**31))
    assert audio is not None
    assert 0 < audio.duration_s < DAY_S


@pytest.mark.parametrize("content", [b"", b"\xff", b"words", b'{"model": "a"}', bytes(4096)])
def test_what_is_no_recording_is_none(content: bytes):
    assert found(content) is None


BENT: list[Callable[[random.Random, bytes], bytes]] = [
    lambda chance, content: content[: chance.randrange(min(len(content), 400))],
    lambda chance, content: (
        content[:4] + bytes(chance.randrange(256) for _ in range(300)) + content[304:]
    ),
]


@pytest.mark.parametrize("bend", BENT)
@pytest.mark.parametrize("name", KNOWN)
def test_any_header_is_read_within_bounds(name: str, bend):
    chance = random.Random(name)
    for _ in range(100):
        audio = found(bend(chance, KNOWN[name][0]))
        assert audio is None or 0 <= audio.duration_s <= DAY_S
