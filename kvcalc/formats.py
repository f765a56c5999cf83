"""Element formats as bytes per block of elements: `q8_0` is 34 bytes for 32 elements, never 1.0625 bytes each."""

from __future__ import annotations

from dataclasses import dataclass

from kvcalc.errors import BadInput, UnsupportedByEngine, did_you_mean

_IEEE = "IEEE 754-2019"
_GGML = "ggml's block structs in ggml-common.h, as listed in llama.cpp's quantisation types"
_MX = "OCP Microscaling Formats (MX) v1.0: one E8M0 scale byte for 32 elements"
_VLLM_ROW = "vLLM 0.33.0 per-token-head caches: one fp32 scale for each token, head and tensor"
_GROUP64 = "transformers 5.24.0 quantised cache, group 64: packed bits with a 16-bit scale and a 16-bit shift"


@dataclass(frozen=True)
class Format:
    """How elements are stored: `block_bytes` for every `block` elements, and `row_bytes_extra` for every row.

    A row is one head's vector of one token (or a latent vector); scales kept per token and head are its extra bytes.
    Scales kept once per tensor are not in the cache and not counted.
    """

    name: str
    block: int
    block_bytes: int
    source: str
    row_bytes_extra: int = 0
    aliases: tuple[str, ...] = ()

    def row_bytes(self, elements: int) -> int:
        """Return the bytes of a row of `elements`; UnsupportedByEngine if blocks do not divide it."""
        if elements % self.block:
            raise UnsupportedByEngine(
                f"format {self.name} stores blocks of {self.block} elements, which do not divide a row of {elements}"
            )
        return elements // self.block * self.block_bytes + self.row_bytes_extra

    def bulk_bytes(self, elements: int) -> int:
        """Return the bytes of `elements` in one flat run, the last block counted whole (weights)."""
        return -(-elements // self.block) * self.block_bytes

    @property
    def describe(self) -> str:
        """The storage rule in words: `34 bytes per 32 elements`."""
        text = f"{self.block_bytes} byte{'s' * (self.block_bytes != 1)} per "
        text += "element" if self.block == 1 else f"{self.block} elements"
        return text + (f" + {self.row_bytes_extra} bytes per row" if self.row_bytes_extra else "")


FORMATS: dict[str, Format] = {
    item.name: item
    for item in (
        Format("fp32", 1, 4, _IEEE, aliases=("float32", "float", "f32")),
        Format("fp16", 1, 2, _IEEE, aliases=("float16", "half", "f16")),
        Format("bf16", 1, 2, "Google Brain's bfloat16: the upper half of an fp32", aliases=("bfloat16",)),
        Format(
            "fp8",
            1,
            1,
            "OCP 8-bit floating point (OFP8) v1.0; scales per tensor are not in the cache",
            aliases=("fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e5m2"),
        ),
        Format("int8", 1, 1, _VLLM_ROW, row_bytes_extra=4, aliases=("int8_per_token_head",)),
        Format("int4", 2, 1, _VLLM_ROW, row_bytes_extra=4, aliases=("int4_per_token_head",)),
        Format("nvfp4", 16, 9, "NVIDIA NVFP4: 16 4-bit floats and one E4M3 scale byte"),
        Format("mxfp8", 32, 33, _MX),
        Format("mxfp4", 32, 17, _MX),
        Format("q8_0", 32, 34, _GGML),
        Format("q5_1", 32, 24, _GGML),
        Format("q5_0", 32, 22, _GGML),
        Format("q4_1", 32, 20, _GGML),
        Format("q4_0", 32, 18, _GGML),
        Format("iq4_nl", 32, 18, _GGML),
        Format("int4_g64", 64, 36, _GROUP64),
        Format("int2_g64", 64, 20, _GROUP64),
    )
}
_BY_ALIAS = {alias: item for item in FORMATS.values() for alias in (item.name, *item.aliases)}


def find_format(name: str, what: str = "format") -> Format:
    """Return the format called `name` (short name or alias); BadInput names the nearest known ones."""
    found = _BY_ALIAS.get(str(name).strip().lower())
    if found is None:
        hint = did_you_mean(name, _BY_ALIAS) or f"; known: {' '.join(FORMATS)}"
        raise BadInput(f"unknown {what} '{name}'{hint}")
    return found


def find_kv_formats(text: str) -> tuple[Format, Format]:
    """Return the formats of K and V: `fp8` for both, `q8_0/q4_0` for K and V apart."""
    parts = str(text).split("/")
    if "" in parts and len(parts) == 2:
        raise BadInput(f"kv dtype '{text}' lacks {'V' if parts[0] else 'K'}; write F for both or K/V")
    if len(parts) > 2:
        raise BadInput(f"kv dtype '{text}' has {len(parts)} parts; write F for both or K/V, for example q8_0/q4_0")
    key = find_format(parts[0], "kv dtype")
    return key, find_format(parts[-1], "kv dtype")
