"""Section 6, the compute buffer: a closed form for dense models of the architecture `llama` on the CPU."""

from __future__ import annotations

from kvcalc.engines._llama_cpp.cells import Context
from kvcalc.engines._llama_cpp.placement import Memory
from kvcalc.engines._llama_cpp.plan import is_plain_llama
from kvcalc.spec.model import ModelSpec

NO_FORM = "a closed form is known for dense models of the architecture llama alone, of heads as wide as the model"
CPU_ALONE = "the closed form is that of the CPU backend alone"
NO_WIDTH = "the spec does not give the feed-forward width; add -o feed_forward_length="
NO_VOCABULARY = "the spec gives no vocab_size"
WITHIN = "closed form for the CPU backend, within 28 bytes per token of n_ubatch"
WITHIN_QUANTISED = "closed form for the CPU backend, within 33 KB per token of n_ubatch (quantised, or several slots)"


def compute_bytes(spec: ModelSpec, found: Memory, context: Context) -> tuple[int | None, str]:
    """Return the compute buffer in bytes and how good the figure is; None and the reason where no form is known."""
    settings = found.settings
    if settings.devices:
        return None, CPU_ALONE
    if not is_plain_llama(found.plan) or spec.architecture == "mixtral" or not _heads_fill_width(spec, found):
        return None, NO_FORM
    width = settings.feed_forward_length or spec.file.intermediate_size
    if width is None:
        return None, NO_WIDTH
    if spec.file.vocab_size is None:
        return None, NO_VOCABULARY
    phases = (
        _feed_forward(spec, found, context, width),
        0 if found.flash_attn else _attention(spec, found, context),
        _logits(spec, found, context, spec.file.vocab_size),
    )
    plain = settings.type_k.block == settings.type_v.block == 1 and context.n_seq_max == 1
    return max(phases), WITHIN if plain else WITHIN_QUANTISED


def _heads_fill_width(spec: ModelSpec, found: Memory) -> bool:
    """Return whether the query heads together are as wide as the model."""
    return (spec.file.heads or 0) * found.plan.caches[0].layers[0].k.head == spec.file.hidden_size


def _feed_forward(spec: ModelSpec, found: Memory, context: Context, width: int) -> int:
    """The feed-forward network of one micro-batch beside the attention mask (fp16 with flash attention, else fp32)."""
    mask = 2 if found.flash_attn else 4
    return context.n_ubatch * (4 * (3 * width + 4 * spec.file.hidden_size) + mask * context.n_ctx_seq)


def _attention(spec: ModelSpec, found: Memory, context: Context) -> int:
    """Scores of every head against every cell, without flash attention."""
    layer = found.plan.caches[0].layers[0]
    heads = spec.file.heads or 0
    rows = 4 * (5 * spec.file.hidden_size + 2 * layer.k.elements)
    return context.n_ubatch * (4 * context.n_ctx_seq * (heads + 1) + rows)


def _logits(spec: ModelSpec, found: Memory, context: Context, vocabulary: int) -> int:
    """Logits of the tokens whose output is asked for: one per slot in llama-server; 0 asks for a whole micro-batch."""
    wanted = found.settings.n_outputs_max
    outputs = context.n_seq_max if wanted is None else wanted or context.n_batch
    return min(context.n_ubatch, outputs) * 4 * (vocabulary + 2 * spec.file.hidden_size)
