"""How long a recording is, as the header of its container says; where that does not say it, from
its size.

Only a few small pieces of the file are read, at most `_MOST_STEPS` of them one after another,
whatever its header claims. Sources: RIFF/WAVE, RFC 9639 (FLAC), RFC 3533 and 7845 (Ogg, Opus),
ISO/IEC 11172-3 and the Xing and VBRI headers of encoders (MP3), ISO/IEC 14496-12 (MP4), RFC 9559
(Matroska, WebM).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import TypeAlias

from hearth.types import DAY_S, frozen

Read: TypeAlias = Callable[[int, int], bytes]
"""The bytes of the file from an offset on, at most so many; fewer at its end."""
_HEAD_BYTES = 4096
_TAIL_BYTES = 64 * 1024
_MOST_STEPS = 256
_LONGEST_S = DAY_S
_LEAST_BYTES_PER_S = 64.0
"""Fewer no recording takes, but for one of silence: a header that says so is not believed."""
SPEECH_BYTES_PER_S = 4000.0
"""Of compressed speech, 32 kbit/s: what a recording of unknown length is taken for. A higher rate
makes it shorter, never longer than that.
"""
_MP3_RATES_KBPS = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
)
"""Of layer III, in version 1 and in versions 2 and 2.5."""
_MP3_SAMPLE_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
_SEGMENT, _INFO, _SCALE, _DURATION, _CLUSTER = 0x18538067, 0x1549A966, 0x2AD7B1, 0x4489, 0x1F43B675


@frozen
class Audio:
    """What a file is. `duration_s`: 0.0 where it holds no sound; `is_exact`: its header says so."""

    container: str
    duration_s: float
    is_exact: bool


def audio_in(read: Read, size_bytes: int) -> Audio | None:
    """None where it is no format that is known."""
    head = read(0, _HEAD_BYTES)
    found = _container_of(head)
    if found is None:
        return None
    container, measure = found
    try:
        duration_s = None if measure is None else measure(read, size_bytes)
    except (struct.error, IndexError, OverflowError):  # the header is cut short, or makes no sense
        duration_s = None
    if duration_s is None:
        return Audio(
            container=container,
            duration_s=min(size_bytes / SPEECH_BYTES_PER_S, _LONGEST_S),
            is_exact=False,
        )
    most_s = min(size_bytes / _LEAST_BYTES_PER_S, _LONGEST_S)
    return Audio(container=container, duration_s=min(duration_s, most_s), is_exact=True)


_Measure: TypeAlias = Callable[[Read, int], float | None]
"""Seconds; None where that is not said. May raise struct.error, IndexError, OverflowError."""


def _container_of(head: bytes) -> tuple[str, _Measure | None] | None:
    for start, container, measure in _CONTAINERS:
        if start.match(head):
            return container, measure
    return ("mp3", _mp3_s) if _frame_of(head, 0) is not None else None


def _wav_s(read: Read, size_bytes: int) -> float | None:
    bytes_per_s = 0
    place = 12
    for _ in range(_MOST_STEPS):
        kind, size = struct.unpack("<4sI", read(place, 8))
        if kind == b"fmt ":
            bytes_per_s = struct.unpack("<I", read(place + 16, 4))[0]
        elif kind == b"data":
            # a recorder that writes as it goes leaves the size out, or says more than there is
            there = max(0, size_bytes - place - 8)
            return min(size or there, there) / bytes_per_s if bytes_per_s else None
        place += 8 + size + size % 2
    return None


def _flac_s(read: Read, _: int) -> float | None:
    packed = struct.unpack(">Q", read(18, 8))[0]
    rate, samples = packed >> 44, packed & (1 << 36) - 1
    return samples / rate if rate and samples else None


def _ogg_s(read: Read, size_bytes: int) -> float | None:
    head = read(0, _HEAD_BYTES)
    packet = head[27 + head[26] :]
    skipped = 0
    if packet[:8] == b"OpusHead":
        rate = 48_000
        skipped = struct.unpack("<H", packet[10:12])[0]
    elif packet[:7] == b"\x01vorbis":
        rate = struct.unpack("<I", packet[12:16])[0]
    elif packet[:5] == b"\x7fFLAC":
        rate = struct.unpack(">Q", packet[27:35])[0] >> 44
    else:
        return None
    tail = read(max(0, size_bytes - _TAIL_BYTES), _TAIL_BYTES)
    last = tail.rfind(b"OggS")
    while last >= 0:
        samples = struct.unpack("<q", tail[last + 6 : last + 14])[0]
        if samples >= 0:  # -1: no packet ends on this page
            return max(0, samples - skipped) / rate if rate else None
        last = tail.rfind(b"OggS", 0, last)
    return None


@frozen
class _Frame:
    """The header of an MP3 frame."""

    rate: int
    bytes_per_s: float
    samples: int
    side_bytes: int


def _frame_of(data: bytes, place: int) -> _Frame | None:
    """That of layer III at a place; None where there is none."""
    if len(data) < place + 4 or data[place] != 0xFF or data[place + 1] & 0xE0 != 0xE0:
        return None
    version, layer = data[place + 1] >> 3 & 3, data[place + 1] >> 1 & 3
    rate_index = data[place + 2] >> 2 & 3
    if version == 1 or layer != 1 or rate_index == 3:
        return None
    kbps = _MP3_RATES_KBPS[version != 3][data[place + 2] >> 4]
    if not kbps:
        return None
    is_mono = data[place + 3] >> 6 == 3
    sides = (32, 17) if version == 3 else (17, 9)
    return _Frame(
        rate=_MP3_SAMPLE_RATES[version][rate_index],
        bytes_per_s=kbps * 125.0,
        samples=1152 if version == 3 else 576,
        side_bytes=sides[is_mono],
    )


def _mp3_s(read: Read, size_bytes: int) -> float | None:
    place = 0
    head = read(0, 10)
    if head[:3] == b"ID3":
        place = 10 + sum((byte & 127) << 7 * at for at, byte in enumerate(reversed(head[6:10])))
    data = read(place, _HEAD_BYTES)
    starts = (at for at in range(len(data)) if data[at] == 0xFF and _frame_of(data, at))
    start = next(starts, None)
    frame = None if start is None else _frame_of(data, start)
    if start is None or frame is None:
        return None
    tag = start + 4 + frame.side_bytes
    frames = 0
    if data[tag : tag + 4] in (b"Xing", b"Info") and data[tag + 7] & 1:
        frames = struct.unpack(">I", data[tag + 8 : tag + 12])[0]
    elif data[start + 36 : start + 40] == b"VBRI":
        frames = struct.unpack(">I", data[start + 50 : start + 54])[0]
    if frames:  # an encoder that writes as it goes leaves it out
        return float(frames * frame.samples / frame.rate)
    return max(0, size_bytes - place - start) / frame.bytes_per_s


def _boxes(read: Read, place: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Kind, begin and end of the content of each box of an MP4."""
    for _ in range(_MOST_STEPS):
        if place + 8 > end:
            return
        size, kind = struct.unpack(">I4s", read(place, 8))
        begin = place + 8
        if size == 1:
            size = struct.unpack(">Q", read(begin, 8))[0]
            begin += 8
        until = end if size == 0 else place + size
        if until < begin:
            return
        yield kind, begin, min(until, end)
        place = until


def _mp4_s(read: Read, size_bytes: int) -> float | None:
    moov = next((box for box in _boxes(read, 0, size_bytes) if box[0] == b"moov"), None)
    if moov is None:
        return None
    mvhd = next((box for box in _boxes(read, *moov[1:]) if box[0] == b"mvhd"), None)
    if mvhd is None:
        return None
    data = read(mvhd[1], 32)
    scale, units = struct.unpack(*(">IQ", data[20:32]) if data[0] else (">II", data[12:20]))
    # a recording in fragments leaves it out
    return float(units / scale) if scale and units else None


def _elements(read: Read, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Id, begin and end of the content of each element of Matroska."""
    for _ in range(_MOST_STEPS):
        head = read(place, 12)
        if place >= end or len(head) < 2 or not head[0]:
            return
        id_width = 9 - head[0].bit_length()
        if id_width > 4 or not head[id_width]:
            return
        width = 9 - head[id_width].bit_length()
        size = int.from_bytes(head[id_width : id_width + width], "big") & (1 << 7 * width) - 1
        begin = place + id_width + width
        is_unknown = size == (1 << 7 * width) - 1
        until = end if is_unknown else begin + size
        yield int.from_bytes(head[:id_width], "big"), begin, min(until, end)
        place = until


def _webm_s(read: Read, size_bytes: int) -> float | None:
    segment = next((one for one in _elements(read, 0, size_bytes) if one[0] == _SEGMENT), None)
    if segment is None:
        return None
    for kind, begin, end in _elements(read, *segment[1:]):
        if kind == _CLUSTER:
            return None
        if kind == _INFO:
            return _info_s(read, begin, end)
    return None


def _info_s(read: Read, begin: int, end: int) -> float | None:
    nanoseconds = 1_000_000
    units = 0.0
    for kind, start, until in _elements(read, begin, end):
        data = read(start, max(0, min(8, until - start)))  # its head may reach over the end
        if kind == _SCALE:
            nanoseconds = int.from_bytes(data, "big")
        elif kind == _DURATION:
            units = struct.unpack(">f" if len(data) == 4 else ">d", data)[0]
    duration_s = units * nanoseconds / 1e9
    # a browser that records leaves it out; no number is not larger than nothing
    return duration_s if duration_s > 0 else None


_CONTAINERS: tuple[tuple[re.Pattern[bytes], str, _Measure | None], ...] = (
    (re.compile(rb"(?:RIFF|RF64)....WAVE", re.DOTALL), "wav", _wav_s),
    (re.compile(rb"fLaC"), "flac", _flac_s),
    (re.compile(rb"OggS"), "ogg", _ogg_s),
    (re.compile(rb"....(?:ftyp|moov|mdat|wide)", re.DOTALL), "mp4", _mp4_s),
    (re.compile(rb"\x1a\x45\xdf\xa3"), "webm", _webm_s),
    (re.compile(rb"ID3"), "mp3", _mp3_s),
    (re.compile(rb"FORM....AIF[FC]", re.DOTALL), "aiff", None),
    (re.compile(rb"\xff[\xf0\xf1\xf8\xf9]"), "aac", None),
    (re.compile(rb"#!AMR"), "amr", None),
    (re.compile(rb"caff"), "caf", None),
    (re.compile(rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11"), "wma", None),
)
"""How a file begins, and what its length is read by; None where its size tells."""
