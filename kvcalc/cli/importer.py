"""`kvcalc import`: a foreign file as a spec."""

from __future__ import annotations

from pathlib import Path

import click

from kvcalc.cli import _options as shared
from kvcalc.errors import BadInput

STDOUT = "-"


@click.command("import", cls=shared.Command, epilog="Example: kvcalc import ./config.json -o my-model.yaml")
@shared.model_argument
@click.option("-o", "output", metavar="FILE", default=STDOUT, help="The spec to write; standard output unless given.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@shared.download_option
def command(model: str, output: str, force: bool, download: bool) -> None:
    """Write MODEL as a spec: a readable YAML file, with where its numbers come from and what was assumed."""
    from kvcalc import api
    from kvcalc.read.spec_text import spec_text

    text = spec_text(api.load(model, download=download))
    if output == STDOUT:
        click.echo(text, nl=False)
        return
    _write(Path(output), text, force)
    click.echo(f"wrote {output}", err=True)


def _write(path: Path, text: str, force: bool) -> None:
    """Write a new file, or with `force` over an old one; BadInput where that cannot be."""
    if path.suffix not in (".yaml", ".yml"):
        raise BadInput(f"-o {path}: a spec's name ends in .yaml")
    if path.is_dir():
        raise BadInput(f"-o {path} is a folder; name a file in it")
    try:
        with path.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise BadInput(f"-o {path}: exists; --force overwrites it") from None
    except OSError as error:
        raise BadInput(f"-o {path}: {error.strerror or error}") from None
