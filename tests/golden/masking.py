"""What differs between two runs of one version: times, ids, ports, durations.

Everything else is compared as it is.
"""

from __future__ import annotations

import re

_MASKS = (
    (re.compile(r"\(Python [\d.]+, [\w ]+\)"), "(<platform>)"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)"), "<time>"),
    (re.compile(r"http://127\.0\.0\.1:\d+"), "<url>"),
    (re.compile(r"/tmp/[\w./-]+"), "<path>"),
    (re.compile(r"\b(file|chatcmpl|cmpl)-[0-9a-f]{24,}"), r"\1-<id>"),
    (
        re.compile(r"\b(req|job|batch_req|batch|file|resp|msg|call|toolu|fc|rs)_[0-9A-Za-z_]{6,}"),
        r"\1_<id>",
    ),
    (re.compile(r"\b(resp|msg|fc|rs|call)_\d+\b"), r"\1_<id>"),
    (re.compile(r"\bchatcmpl-\d+\b"), "chatcmpl-<id>"),
    (re.compile(r"\bcmpl-\d+\b"), "cmpl-<id>"),
    (
        re.compile(
            r'("(?:\w*_duration|created|created_at|completed_at|expires_at|in_progress_at|'
            r'finalizing_at|size_vram)": ?)\d+'
        ),
        r"\1<n>",
    ),
    (
        re.compile(
            r'("(?:\w+_(?:s|wall_s|ms|at|pct)|estimated_\w+|gpu_\w+|at|bytes|again_tokens|'
            r'verified_chars|since|ts|uptime|started)": ?)'
            r"-?[\d.e+-]+"
        ),
        r"\1<n>",
    ),
    (re.compile(r"\b1[789]\d{8}(?:\.\d+)?\b"), "<seconds since 1970>"),
    (re.compile(r"\b[0-9a-f]{24,}\b"), "<id>"),
)


def masked(text: str) -> str:
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text
