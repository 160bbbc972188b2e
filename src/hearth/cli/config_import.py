"""`hearth config import`: the configuration of another gateway as one of Hearth."""

from __future__ import annotations

from pathlib import Path

import click

from hearth.cli import ExitCode, Unusable
from hearth.cli.options import FILE
from hearth.config.llama_swap.importing import imported
from hearth.config.llama_swap.writing import written
from hearth.config.loading import MAX_DOCUMENT_BYTES, parse_bytes, read_bytes, text_of
from hearth.dialects.request import is_model_name
from hearth.errors import ConfigError


@click.command("import")
@click.argument("file", type=FILE)
@click.option("--output", type=FILE, metavar="FILE", help="Write it to a new FILE, not to stdout.")
@click.pass_context
def import_config(context: click.Context, file: Path, *, output: Path | None) -> None:
    """Print the configuration of llama-swap in FILE as one of Hearth.

    What Hearth has not, or has in another way, is a comment in it, and a line on stderr.
    """
    result = imported(text_of(read_bytes(file), file), str(file), is_model_name)
    text = written(result, file.name)
    content = text.encode()
    if len(content) > MAX_DOCUMENT_BYTES:
        raise Unusable(
            f"{file}: would be larger than {MAX_DOCUMENT_BYTES // 1024} KiB, the most that a"
            " configuration of Hearth may have"
        )
    if output is None:
        click.echo(text, nl=False)
    else:
        _write(output, text)
    for note in result.notes:
        click.echo(f"{file}:{note.line}: {note.place}: {note.text}", err=True)
    try:
        settings = parse_bytes(content, output or Path("the result")).settings
    except ConfigError as error:
        click.echo("\n".join(error.problems), err=True)
        context.exit(ExitCode.USAGE)
    counts = f"models: {len(settings.models)}, aliases: {len(settings.aliases)}"
    click.echo(f"{counts}, not carried over as it was: {len(result.notes)}", err=True)


def _write(output: Path, text: str) -> None:
    try:
        with output.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise Unusable(f"{output} exists: name another file, or remove it") from None
    except OSError as error:
        raise Unusable(f"{output}: cannot be written: {error.strerror or error}") from error
