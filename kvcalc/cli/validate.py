"""`kvcalc validate`: the prediction against memory that is really allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from kvcalc.cli import _options as shared
from kvcalc.cli._compared import compared_rows

if TYPE_CHECKING:
    from kvcalc.api import Setup, SizeResult
    from kvcalc.cli._validate_library import LibraryValidation
    from kvcalc.cli._validate_llama_cpp import LlamaCppValidation
    from kvcalc.measure.cache import Allocation

DIFFERS = 1


@click.command(cls=shared.Command, epilog="Example: kvcalc validate gpt2-small --ctx 4096 --device cpu")
@click.argument("model", type=shared.ModelName(), required=False)
@click.option(
    "--ctx",
    "context",
    type=shared.TokenCount(),
    help="Tokens of one sequence: 4096, 4K, 1Mi (k is 1000); a log has its own.",
)
@shared.batch_option
@click.option("--log", metavar="FILE", help="Compare with what this log of a server printed; MODEL if it names none.")
@click.option(
    "--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True, help="Where to allocate."
)
@shared.deployment_options
@shared.output_options
def command(model: str | None, context: int | None, batch: int, device: str, log: str | None, **given: Any) -> None:
    """Allocate the KV cache of MODEL with torch and compare its bytes with the prediction: exit 0 equal, 1 not.

    With --log nothing is allocated: every figure that a log of vLLM, SGLang, TensorRT-LLM, llama.cpp or Ollama printed
    about its cache is compared.

    With --engine transformers the cache is the one that the library makes itself, on torch's meta device; with
    --engine llama.cpp (or ollama) the log of llama.cpp's library is compared, line by line.
    """
    from kvcalc import api
    from kvcalc.output import render, to_json

    style, units = shared.chosen_style(given)
    arguments = shared.deployment_arguments(given)
    if log is not None:
        from kvcalc.cli import _validate_log

        checked = _validate_log.validate(log, model, context, batch, arguments)
        _validate_log.show(checked, style)
        _exit_if(not checked.equal)
        return
    if model is None:
        raise click.MissingParameter(param_hint="'MODEL'", param_type="argument")
    if context is None:
        raise click.MissingParameter(param_hint="'--ctx'", param_type="option")
    setup = api.prepare(model, **arguments)
    result = _validate(setup, context, batch, device)
    shared.warn(result.predicted.warnings)
    if style == "table":
        click.echo(result.report(units))
    elif style == "json":
        click.echo(to_json(result.to_json()))
    else:
        click.echo(render(result.rows(), style, aligned_right=("layers", "predicted_bytes", "allocated_bytes")))
    _exit_if(not result.equal)


def _exit_if(differs: bool) -> None:
    if differs:
        click.get_current_context().exit(DIFFERS)


def _validate(
    setup: Setup, context: int, batch: int, device: str
) -> _Validation | LibraryValidation | LlamaCppValidation:
    """Return the comparison with the engine's own library where it has one, else with tensors laid out by torch."""
    if setup.engine.name == "transformers":
        from kvcalc.cli._validate_library import validate

        return validate(setup, context, batch)
    if setup.engine.name in ("llama.cpp", "ollama"):
        from kvcalc.cli import _validate_llama_cpp

        return _validate_llama_cpp.validate(setup, context, batch)
    from kvcalc import api
    from kvcalc.measure.cache import allocate

    predicted = api.measure(setup, context, batch)
    return _Validation(predicted, allocate(api.cache_tensors(setup, context, batch), device), device)


@dataclass(frozen=True)
class _Validation:
    """A prediction beside what was measured."""

    predicted: SizeResult
    allocated: Allocation
    device: str

    @property
    def equal(self) -> bool:
        """Whether every kind of layer, and so the whole, took exactly what was predicted."""
        return all(row["predicted_bytes"] == row["allocated_bytes"] for row in self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """Return predicted and allocated bytes by kind of layer, kinds that were allocated unforeseen included."""
        return compared_rows(self.predicted.breakdown, dict(self.allocated.by_label))

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON data."""
        size, found = self.predicted, self.allocated
        return {
            "schema": "kvcalc.validate/1",
            "model": size.model,
            "engine": {"name": size.engine, "version": size.engine_version},
            "device": self.device,
            "device_name": found.device_name,
            "context": size.context,
            "batch": size.batch,
            "dtype": size.dtype,
            "kv_dtype": size.kv_dtype,
            "predicted_bytes": size.total_bytes,
            "allocated_bytes": found.storage_bytes,
            "equal": self.equal,
            "tensors": found.tensors,
            "by_kind": self.rows(),
            "allocator": found.allocator,
            "allocator_bytes": found.allocator_bytes,
            "torch_version": found.torch_version,
            "assumptions": list(size.assumptions),
            "warnings": list(size.warnings),
        }

    def report(self, units: str) -> str:
        """Return the comparison for people, the verdict in words."""
        from kvcalc.output import render
        from kvcalc.units import format_exact

        size, found = self.predicted, self.allocated
        device = self.device if found.device_name == self.device else f"{self.device} ({found.device_name})"
        head = f"{size.model}  context {size.context:,}, batch {size.batch:,}, KV {size.kv_dtype}, on {device}"
        rows = [
            {
                "layers": row["label"],
                "kind": row["kind"],
                "number": row["layers"],
                "predicted bytes": f"{row['predicted_bytes']:,}",
                "allocated bytes": f"{row['allocated_bytes']:,}",
            }
            for row in self.rows()
        ]
        difference = found.storage_bytes - size.total_bytes
        verdict = "equal, byte for byte" if self.equal else f"they differ: {difference:+,} bytes in all"
        lines = [
            f"{head}, torch {found.torch_version}",
            "",
            f"predicted  {format_exact(size.total_bytes, units)}",
            f"allocated  {format_exact(found.storage_bytes, units)}  in {found.tensors:,} tensors",
            f"           {verdict}",
            "",
            render(rows, "table", aligned_right=("number", "predicted bytes", "allocated bytes")),
        ]
        if found.allocator_bytes is not None:
            lines += ["", f"{found.allocator} grew by {format_exact(found.allocator_bytes, units)}{self._rounding()}"]
        return "\n".join([*lines, *(f"assumed: {text}" for text in size.assumptions)])

    def _rounding(self) -> str:
        """Say why the allocator's own figure is not the same."""
        from kvcalc.measure.cache import CUDA_ROUNDING_BYTES

        if self.device == "cuda":
            return f"; it rounds every tensor up to {CUDA_ROUNDING_BYTES} bytes or more"
        return "; it counts whole pages, and whatever else the process did"
