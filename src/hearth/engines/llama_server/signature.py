"""What tells a server whose saved conversations can be read from any other.

llama.cpp's server reads what was saved with other weights of the same shape, says that it did, and
writes a wrong text: so nothing is read unless everything about the two servers is equal.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hearth.dialects.gojson import JsonObject, JsonValue, encode

END_BYTES = 1024 * 1024
"""So much of the beginning and of the end of each file is read."""
DECISIVE = ("build_info", "model_path", "model_ftype", "total_slots", "chat_template")


def signature_of(command: Sequence[str], environment: Mapping[str, str], props: JsonObject) -> str:
    """SHA-256 in hex over the command, the files that it names, its environment, and what the
    server says of itself. Reads files: some milliseconds for each.

    Args:
        command: without its port. environment: as the owner set it. props: its `/props`.
    """
    settings = props.get("default_generation_settings")
    context = settings.get("n_ctx") if isinstance(settings, dict) else None
    model_path = props.get("model_path")
    named = [*command[1:], model_path if isinstance(model_path, str) else ""]
    program = shutil.which(command[0]) if command else None
    paths = dict.fromkeys(path for part in (program or "", *named) for path in _files(part))
    said: JsonObject = {name: props.get(name) for name in DECISIVE}
    decisive: list[JsonValue] = [
        [*command],
        dict(sorted(environment.items())),
        said,
        context,
        [_identity(path) for path in paths],
    ]
    return hashlib.sha256(encode(decisive)).hexdigest()


def _files(part: str) -> Iterator[Path]:
    """The files that a word of a command names, as `FILE` or `--option=FILE`; all parts of a model
    that is split into several.
    """
    for text in {part, part.partition("=")[2]}:
        try:
            path = Path(text)
            if not text or not path.is_file():
                continue
        except (OSError, ValueError):
            continue
        head, of, count = path.stem.rpartition("-of-")
        if of and count.isdigit() and path.suffix == ".gguf":
            yield from sorted(path.parent.glob(f"{_escaped(head[:-5])}*-of-{count}.gguf"))
        else:
            yield path


def _escaped(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def _identity(path: Path) -> JsonValue:
    """Path, size, time of its last change, and a hash of its beginning and end."""
    status = path.stat()
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        digest.update(file.read(END_BYTES))
        file.seek(max(0, status.st_size - END_BYTES))
        digest.update(file.read(END_BYTES))
    return [str(path), status.st_size, status.st_mtime_ns, digest.hexdigest()]
