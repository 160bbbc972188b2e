"""A gateway reduced to its store, to be killed: writes numbered rows and says on standard output which of them are acknowledged.

python -m tests.storage.acknowledging PATH FIRST
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.storage.house import note, writing


async def main(path: Path, first: int) -> None:
    async with writing(path) as writer:

        async def write(number: int) -> None:
            while True:
                await writer.submit(note(number, "x" * 500))
                sys.stdout.write(f"{number}\n")
                sys.stdout.flush()
                number += 4

        await asyncio.gather(*(write(first + lane) for lane in range(4)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
