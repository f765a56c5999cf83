"""The transformers profile: which tensors a cache holds, the storages behind them, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc import api
from kvcalc.engines.transformers import ENGINE
from kvcalc.errors import BadInput, KvcalcError, UnsupportedByEngine
from kvcalc.spec.model import ModelSpec
from tests.property.specs import small_spec

ROW = 4 * 64 * 2  # bytes of one token's keys (or values) in one layer of the small spec, bf16


def size(spec: ModelSpec | str, context: int, batch: int = 1, **arguments: Any) -> api.SizeResult:
    """Return the size on the engine; `options` are its own."""
    return api.size(spec, context=context, batch=batch, engine="transformers", **arguments)


def windowed(window: int, layers: int = 4, **changes: Any) -> ModelSpec:
    """Return the small spec with only sliding layers."""
    return small_spec(layers=layers, kinds={"local": {"kind": "sliding", "window": window}}, **changes)


# What lies behind the tensors


def test_a_full_layer_keeps_every_token() -> None:
    """Keys and values of four layers, without anything beside them."""
    found = size(small_spec(), 10, 3)
    assert found.total_bytes == 4 * 2 * 10 * 3 * ROW
    assert found.engine_report["storage_bytes"] == found.total_bytes
    assert found.engine_report["after_decode_bytes"] == 4 * 2 * 11 * 3 * ROW


def test_a_sliding_layer_keeps_one_token_less_than_its_window() -> None:
    """The token that arrives makes up the window."""
    assert [size(windowed(8), n).total_bytes // (8 * ROW) for n in (1, 6, 7, 8, 9, 100)] == [1, 6, 7, 7, 7, 7]


def test_the_whole_prompt_stays_alive_until_the_next_step() -> None:
    """Mistral 7B v0.1 at 8,192 tokens: half of the prefill's storage lies behind nothing that is kept."""
    found = size("mistral-7b-v0.1", 8192)
    assert found.total_bytes == 536_739_840
    assert found.engine_report["storage_bytes"] == 1_073_741_824
    assert found.engine_report["after_decode_storage_bytes"] == 536_870_912


def test_after_a_decode_step_one_row_beyond_the_view_is_alive() -> None:
    """Said with prompt_tokens: the window's rows, the pushed-out one included."""
    found = size(windowed(8), 20, options={"prompt_tokens": 19})
    assert (found.total_bytes, found.engine_report["storage_bytes"]) == (8 * 7 * ROW, 8 * 8 * ROW)


def test_a_window_of_one_token_is_never_cut() -> None:
    """The library cuts to the last -0 rows, which are all."""
    assert size(windowed(1), 50).total_bytes == 8 * 50 * ROW


def test_without_the_config_no_window_is_known() -> None:
    """`DynamicCache()` keeps every token of every layer."""
    assert size(windowed(8), 50, options={"config": False}).total_bytes == 8 * 50 * ROW


def test_growing_needs_the_old_and_the_new_tensor_of_one_layer() -> None:
    """Seven of eight tensors have grown when the last one is copied: 7 x 11 rows, its 10 old and its 11 new ones."""
    assert size(small_spec(), 10).engine_report["growth_peak_bytes"] == (7 * 11 + 10 + 11) * ROW


def test_a_sliding_layer_grows_keys_and_values_together() -> None:
    """Right after a prefill of 20 the first layer is the worst: 2 x 8 new rows beside all 8 x 20 old ones."""
    assert size(windowed(8), 20).engine_report["growth_peak_bytes"] == (8 * 20 + 2 * 8) * ROW


def test_a_cache_that_does_not_grow_peaks_at_its_size() -> None:
    """A static cache is written in place."""
    report = size(small_spec(), 10, options={"cache": "static", "max_cache_len": 64}).engine_report
    assert report["growth_peak_bytes"] == report["storage_bytes"] == 4 * 2 * 64 * ROW


def test_a_full_static_window_is_rolled_through_a_copy() -> None:
    """Keys and values of one layer once more, as soon as the window's rows are taken."""
    options = {"cache": "static", "max_cache_len": 64}
    peaks = [size(windowed(8), n, options=options).engine_report["growth_peak_bytes"] for n in (7, 8)]
    assert peaks == [8 * 8 * ROW, (8 * 8 + 2 * 8) * ROW]


# Model types whose rule differs


def test_falcon_caches_its_query_heads() -> None:
    """The new decoder architecture repeats 4 kv heads to 8; a single kv head stays one."""
    assert size(small_spec(architecture="falcon"), 10).total_bytes == 2 * size(small_spec(), 10).total_bytes
    assert size(small_spec(architecture="falcon", kv_heads=1), 10).total_bytes == 4 * 2 * 10 * 64 * 2


def test_values_that_are_keys_are_cached_all_the_same() -> None:
    """A value head of 0 elements means that the values are read from the keys, which the library does not do."""
    assert size(small_spec(v_head_dim=0), 10).total_bytes == size(small_spec(), 10).total_bytes


def test_the_window_of_mimo_v2_counts_the_query_too() -> None:
    """Its class adds the query to the published 8: 8 rows are kept, where others keep 7."""
    assert size(windowed(8, architecture="mimo_v2_flash"), 50).total_bytes == 8 * 8 * ROW


def test_recurrent_state_is_fp32_and_its_convolution_is_kernel_wide() -> None:
    """512 channels: 4 inputs of the convolution in bf16, a state of 16 in fp32, whatever the context."""
    mamba = {"kind": "state", "variant": "mamba1", "channels": 512, "state_size": 16, "conv_kernel": 4}
    spec = small_spec(kinds={"mamba": mamba})
    assert {size(spec, n).total_bytes for n in (1, 1000)} == {4 * (512 * 4 * 2 + 512 * 16 * 4)}
    assert size(spec, 1, dtype="fp32").total_bytes == 4 * (512 * 4 * 4 + 512 * 16 * 4)


def test_recurrent_gemma_keeps_one_input_less_as_a_view() -> None:
    """Three columns of the convolution; a pass of one token leaves the fourth alive behind them."""
    block = {"kind": "state", "variant": "rg_lru", "channels": 512, "conv_kernel": 4}
    spec = small_spec(architecture="recurrent_gemma", kinds={"linear": block})
    held, column = 4 * (512 * 3 * 2 + 512 * 4), 4 * 512 * 2
    stored = [size(spec, n).engine_report["storage_bytes"] for n in (1, 2, 100)]
    assert stored == [held + column, held, held]
    assert size(spec, 100).engine_report["after_decode_storage_bytes"] == held + column


def test_lightning_state_has_the_models_dtype() -> None:
    """Two heads of 64 x 64, two bytes each."""
    linear = {"kind": "state", "variant": "lightning", "state_heads": 2, "state_head_dim": 64}
    assert size(small_spec(kinds={"linear": linear}), 9).total_bytes == 4 * 2 * 64 * 64 * 2


def test_cross_attention_without_an_encoder_holds_nothing() -> None:
    """Llama 3.2 Vision with text alone: 32 of 40 layers."""
    assert size("llama-3.2-11b-vision", 100).total_bytes == 32 * 2 * 100 * 8 * 128 * 2


# Compressed layers: a literal cache beside the staircases


@dataclass
class LiteralLayer:
    """DeepSeek-V4's layer, or a plain sliding one (ratio None), as lists of tokens that are really cut."""

    window: int
    ratio: int | None = None
    kept: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    behind_waiting: list[int] = field(default_factory=list)
    entries: int = 0

    def add(self, tokens: list[int]) -> None:
        """Write tokens in one pass: everything is put behind what is kept, then cut."""
        self.behind = self.kept + tokens
        self.kept = self.behind[-(self.window - 1) :]
        if self.ratio is not None:
            self.behind_waiting = self.waiting + tokens
            whole = len(self.behind_waiting) // self.ratio
            self.waiting = self.behind_waiting[whole * self.ratio :]
            self.entries += whole


@given(window=st.integers(2, 12), prompt=st.integers(1, 40), decoded=st.integers(0, 30), batch=st.integers(1, 3))
def test_sliding_layers_match_a_literal_cache(window: int, prompt: int, decoded: int, batch: int) -> None:
    """Rows kept and rows behind them, after any prefill and any number of steps."""
    layer = _filled(LiteralLayer(window), prompt, decoded)
    found = size(windowed(window, layers=1), prompt + decoded, batch, options={"prompt_tokens": prompt})
    assert found.total_bytes == 2 * batch * ROW * len(layer.kept)
    assert found.engine_report["storage_bytes"] == 2 * batch * ROW * len(layer.behind)


@given(
    window=st.integers(2, 12),
    ratio=st.integers(1, 9),
    prompt=st.integers(1, 40),
    decoded=st.integers(0, 30),
    indexed=st.booleans(),
)
def test_compressed_layers_match_a_literal_cache(
    window: int, ratio: int, prompt: int, decoded: int, indexed: bool
) -> None:
    """Window (values counted, stored once), entries, waiting tokens of twofold width where groups overlap, overlaps."""
    size_of_entry = 64 + (16 if indexed else 0)
    kind = {"kind": "compressed", "window": window, "ratio": ratio, **({"index_head_dim": 16} if indexed else {})}
    layer = _filled(LiteralLayer(window, ratio), prompt, decoded)
    waiting_row = 2 * size_of_entry * (2 if indexed else 1) * 2
    overlap = size_of_entry * ratio * (2 + 4) if indexed and layer.entries else 0
    rest = size_of_entry * 2 * layer.entries + overlap
    found = size(small_spec(layers=1, kinds={"csa": kind}), prompt + decoded, options={"prompt_tokens": prompt})
    assert found.total_bytes == 2 * 64 * 2 * len(layer.kept) + waiting_row * len(layer.waiting) + rest
    behind_waiting = len(layer.behind_waiting) if decoded == 0 and layer.waiting else len(layer.waiting)
    stored = 64 * 2 * len(layer.behind) + waiting_row * behind_waiting + rest
    assert found.engine_report["storage_bytes"] == stored


def _filled(layer: LiteralLayer, prompt: int, decoded: int) -> LiteralLayer:
    for tokens in _passes(prompt, decoded):
        layer.add(tokens)
    return layer


def _passes(prompt: int, decoded: int) -> Iterator[list[int]]:
    yield list(range(prompt))
    for token in range(prompt, prompt + decoded):
        yield [token]


# Static and quantised caches


def test_a_static_cache_is_whole_from_the_first_token() -> None:
    """Full layers take the length, sliding ones the window if that is shorter."""
    both = {"local": {"kind": "sliding", "window": 8}, "global": {"kind": "full"}}
    spec = small_spec(kinds=both, pattern=["local", "global"])
    assert size(spec, 1, options={"cache": "static", "max_cache_len": 64}).total_bytes == 2 * 2 * (8 + 64) * ROW
    assert size(spec, 1, options={"cache": "static", "max_cache_len": 5}).total_bytes == 2 * 2 * (5 + 5) * ROW


def test_a_context_beyond_a_static_cache_is_refused_unless_all_layers_slide() -> None:
    """Full layers have no row for it; windows roll on."""
    options = {"cache": "static", "max_cache_len": 64}
    with pytest.raises(BadInput, match=r"context 65 exceeds max_cache_len 64.*max_cache_len=65"):
        size(small_spec(), 65, options=options)
    assert size(windowed(8), 65, options=options).total_bytes == 8 * 8 * ROW


@pytest.mark.parametrize(("nbits", "packed"), [(4, 32), (2, 16)])
def test_sixty_four_elements_share_a_scale_and_a_shift(nbits: int, packed: int) -> None:
    """0.5625 bytes an element at 4 bits and 0.3125 at 2: the packed bits and two numbers of the model's dtype."""
    options = {"cache": "quantized", "nbits": nbits}
    groups = 4 * 2 * 100 * 3 * (4 * 64 // 64)
    assert size(small_spec(), 100, 3, options=options).total_bytes == groups * (packed + 2 * 2)
    assert size(small_spec(), 100, 3, dtype="fp32", options=options).total_bytes == groups * (packed + 2 * 4)


def test_the_tail_is_folded_in_when_it_is_full() -> None:
    """After a prompt of 100: 127 tokens wait as they are, the 128th folds them all."""
    options = {"cache": "quantized", "prompt_tokens": 100}
    quantised = ROW // 2 // 64 * 36
    one, full, folded = (size(small_spec(layers=1), 100 + n, options=options).total_bytes for n in (1, 127, 128))
    assert one == 2 * (100 * quantised + ROW)
    assert full == 2 * (100 * quantised + 127 * ROW)
    assert folded == 2 * 228 * quantised


def test_an_fp8_cache_has_one_scale_per_tensor_and_no_tail() -> None:
    """One byte an element; the scale is the batch's, not a sequence's."""
    options = {"cache": "quantized", "backend": "fp8", "prompt_tokens": 5}
    assert size(small_spec(), 50, 3, options=options).total_bytes == 4 * 2 * (50 * 3 * 4 * 64 + 4)


def test_quanto_fills_up_the_last_run_of_packed_bytes() -> None:
    """One group a token: five groups of four bits take three runs of 64 bytes; hqq packs within the group."""
    spec = small_spec(layers=1, kv_heads=1)
    quanto, hqq = (
        size(spec, 5, options={"cache": "quantized", "backend": name}).total_bytes for name in ("quanto", "hqq")
    )
    assert quanto == 2 * (3 * 64 + 5 * 2 * 2)
    assert hqq == 2 * 5 * (32 + 2 * 2)


def test_folds_of_half_a_run_are_not_guessed() -> None:
    """A fold that ends within a packed byte depends on what came before it."""
    options = {"cache": "quantized", "prompt_tokens": 3, "residual_length": 7}
    with pytest.raises(UnsupportedByEngine, match="ends within a packed byte; use a residual_length that 2 divides"):
        size(small_spec(kv_heads=1), 5, options=options)


def test_groups_must_divide_a_row() -> None:
    """The library could not form groups of 64 either."""
    with pytest.raises(
        UnsupportedByEngine, match=r"groups of 64 elements, which do not divide a token's 96 \(4 x 24\)"
    ):
        size(small_spec(head_dim=24), 5, options={"cache": "quantized"})


# Devices


def test_devices_have_their_layers_and_replicas_their_sequences() -> None:
    """Five layers on two devices; three sequences on two replicas, each of which provides for two."""
    found = size(small_spec(layers=5), 10, 3, pp=2, dp=2)
    assert found.per_rank_bytes == tuple(layers * 2 * 10 * 2 * ROW for layers in (3, 2, 3, 2))
    assert found.engine_report["storage_bytes"] == found.total_bytes
    assert found.engine_report["growth_peak_bytes"] == 2 * 2 * sum((2 * k - 1) * 11 + 10 + 11 for k in (3, 2)) * ROW
    assert "device_map gives each of 2 devices an equal run of layers" in found.assumptions


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_cache_len": 5},
            "option max_cache_len=5: a dynamic or quantized cache has no length; add -o cache=static",
        ),
        ({"cache": "static"}, "option max_cache_len=: a static cache needs its length"),
        ({"nbits": 4}, "option nbits=4: only a quantized cache takes it"),
        ({"residual_length": 64}, "option residual_length=64: only a quantized cache takes it"),
        ({"backend": "hqq"}, "option backend=hqq: only a quantized cache has a backend"),
        ({"cache": "quantized", "nbits": 3}, "option nbits=3: must be 2 or 4"),
        ({"cache": "quantized", "nbits": "four"}, "option nbits=four: must be 2 or 4"),
        (
            {"cache": "quantized", "backend": "fp8", "nbits": 4},
            "option nbits=4: the fp8 backend quantises whole tensors",
        ),
        ({"cache": "quantized", "config": "false"}, "option config=false: only a dynamic cache"),
        ({"cache": "hybrid"}, "option cache=hybrid: must be 'dynamic', 'static' or 'quantized'"),
        ({"prompt_tokens": 0}, "option prompt_tokens=0: must be at least 1"),
        ({"prompt_tokens": 101}, "prompt_tokens 101 exceeds the context 100"),
        ({"residual": 5}, "engine transformers has no option 'residual'; did you mean residual_length?"),
    ],
)
def test_contradictory_options_are_named(options: dict[str, Any], message: str) -> None:
    """Each refusal names the option and what to do."""
    with pytest.raises(BadInput) as error:
        size(small_spec(), 100, options=options)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        ({"tp": 2}, "tensor parallelism (tp_plan) is not covered; use --tp 1"),
        ({"dcp": 2}, "no decode context parallelism; drop --dcp"),
        ({"kv_dtype": "fp8"}, "caches in the model's dtype bf16, not in fp8"),
        ({"kv_dtype": "bf16/q8_0"}, "not in bf16/q8_0"),
        ({"dtype": "fp8"}, "computes and caches in fp32, fp16 or bf16, not fp8"),
        ({"pp": 5}, "pp 5 needs at least 5 layers"),
    ],
)
def test_deployments_that_the_library_does_not_have_are_refused(deployment: dict[str, Any], message: str) -> None:
    """The refusal says what to use instead."""
    with pytest.raises(UnsupportedByEngine) as error:
        size(small_spec(), 100, **deployment)
    assert message in str(error.value)


def test_the_models_own_dtype_may_be_said_twice() -> None:
    """`--kv-dtype` that changes nothing is not refused."""
    assert size(small_spec(), 10, kv_dtype="bf16").total_bytes == size(small_spec(), 10).total_bytes


_MAMBA = {"kind": "state", "variant": "mamba1", "channels": 64, "state_size": 16, "conv_kernel": 4}
_CSA = {"kind": "compressed", "window": 8, "ratio": 4, "index_head_dim": 16}
_RWKV_7 = {"kind": "state", "variant": "rwkv", "channels": 64, "state_heads": 1, "state_head_dim": 64}
_LIGHTNING = {"kind": "state", "variant": "lightning", "state_heads": 1, "state_head_dim": 64}


@pytest.mark.parametrize(
    ("kinds", "options", "message"),
    [
        ({"local": {"kind": "sliding", "window": 8}}, {"cache": "quantized"}, "full-attention layers only; .* sliding"),
        ({"mamba": _MAMBA}, {"cache": "quantized"}, r"full-attention layers only; .* state \(mamba1\) layers"),
        (
            {"csa": _CSA},
            {"cache": "static", "max_cache_len": 9},
            "compressed layers, for which a static cache has no layer",
        ),
        ({"x": _LIGHTNING}, {"cache": "static", "max_cache_len": 9}, r"\(lightning\) layers, for which a static cache"),
        ({"mamba": _MAMBA}, {"config": False}, "made without the config cannot hold"),
        ({"rwkv": _RWKV_7}, {}, "has RWKV 4 and no later one"),
    ],
)
def test_a_cache_without_a_layer_for_a_kind_is_refused(
    kinds: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    """The refusal names the kind and the cache."""
    with pytest.raises(UnsupportedByEngine, match=message):
        size(small_spec(kinds=kinds), 5, options=options)


def test_a_quantised_cache_has_no_layer_without_attention() -> None:
    """A layer of an MLP alone is refused like any other that is not full attention."""
    spec = small_spec(kinds={"global": {"kind": "full"}}, pattern=["global", "none"])
    with pytest.raises(UnsupportedByEngine, match="has layers without attention"):
        size(spec, 5, options={"cache": "quantized"})


def test_an_unknown_model_type_is_refused_by_name() -> None:
    """What a model's own code caches is not the library's rule."""
    with pytest.raises(UnsupportedByEngine, match="has no model type 'grok-1'"):
        size(small_spec(architecture="grok-1"), 5)


def test_the_prompt_is_an_assumption_until_it_is_given() -> None:
    """Storage depends on it; a static cache does not."""
    assert any("prompt_tokens" in text for text in size(small_spec(), 9).assumptions)
    assert not any("prompt" in text for text in size(small_spec(), 9, options={"prompt_tokens": 9}).assumptions)
    static = {"cache": "static", "max_cache_len": 9}
    assert not any("prompt" in text for text in size(small_spec(), 9, options=static).assumptions)


def test_every_option_is_documented() -> None:
    """The text below each option is what `kvcalc engines` and the docs show."""
    docs = ENGINE.options_class.field_docs()
    assert set(docs) == set(ENGINE.options_class.model_fields)


def test_the_refusals_are_kvcalcs_own_errors() -> None:
    """One line each, no traceback: every one derives from KvcalcError."""
    refused: tuple[dict[str, Any], ...] = ({"tp": 2}, {"options": {"nbits": 4}}, {"dtype": "q8_0"})
    for deployment in refused:
        with pytest.raises(KvcalcError) as error:
            size(small_spec(), 5, **deployment)
        assert "\n" not in str(error.value)
