"""Curves and figures, from placements built by hand: values, steps, ticks, marks and colours."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from kvcalc.errors import BadInput, UnsupportedByEngine
from kvcalc.footprint import BlockGroup, Footprint, Placement, Pool, Rank, Retention, Steps, Term
from kvcalc.plot import figures
from kvcalc.plot.figures import Curve, Subject
from kvcalc.units import parse_bytes, parse_tokens


def footprint(unit_bytes: int, steps: Steps | None = None) -> Footprint:
    """Return a footprint of one term: `unit_bytes` for every token unless other steps are given."""
    return Footprint((Term("full", "full", "k", (("bytes", unit_bytes),), steps or Steps.per_token(), "by hand"),))


def placement(*ranks: Footprint, dp: int = 1) -> Placement:
    """Return a placement with one rank for each footprint."""
    return Placement(tuple(Rank(0, index, rank, rank) for index, rank in enumerate(ranks)), dp)


def subject(where: Placement, high: int, low: int = 1, **known: Any) -> Subject:
    """Return a subject called `model`."""
    return Subject("model", where, low, high, **known)


def drawn(figure: dict[str, Any], name: str = "model") -> list[tuple[int, int]]:
    """Return the points of all traces of that name."""
    return [
        pair for trace in figure["data"] if trace["name"] == name for pair in zip(trace["x"], trace["y"], strict=True)
    ]


def test_a_context_curve_adds_all_ranks_and_replicas() -> None:
    """Two ranks of 10 and 6 bytes a token, three replicas, 7 sequences: 3 sequences each."""
    [curve] = figures.context_curves([subject(placement(footprint(10), footprint(6), dp=3), 500)], batch=7)
    assert curve.contexts == tuple(range(1, 501))
    assert curve.values == tuple(3 * 3 * 16 * context for context in range(1, 501))


def test_curves_share_their_contexts_so_that_one_hover_tells_all() -> None:
    """Each model is drawn over its own range, at contexts of one common grid."""
    short = subject(placement(footprint(10)), 1000)
    long = subject(placement(footprint(10)), 100_000)
    first, second = figures.context_curves([short, long], batch=1)
    assert set(first.contexts) == {context for context in second.contexts if context <= 1000}
    assert (first.contexts[-1], second.contexts[-1]) == (1000, 100_000)


def test_both_sides_of_every_fall_are_drawn() -> None:
    """A chunk of 4,096 tokens: the saw-tooth stands at its full height and falls within one token."""
    [curve] = figures.context_curves([subject(placement(footprint(8, Steps.chunk(4096))), 131_072)], batch=1)
    values = dict(zip(curve.contexts, curve.values, strict=True))
    for tooth in range(1, 32):
        assert values[4096 * tooth] == 8 * 4096
        assert values[4096 * tooth + 1] == 8


@pytest.mark.parametrize("high", [1, 2, 131_072, 10**12])
@pytest.mark.parametrize("models", [1, 3, 16])
def test_any_range_is_drawn_with_a_few_thousand_points(high: int, models: int) -> None:
    """Neither a huge range nor many models make a huge page."""
    where = placement(footprint(8, Steps.chunk(64)) + footprint(3, Steps.window(100)))
    subjects = [Subject(f"model-{index}", where, 1, high) for index in range(models)]
    context = figures.context_curves(subjects, batch=1)
    capacity = figures.capacity_curves(subjects, memory=10**9)
    for curves in (context, capacity):
        assert sum(len(curve.contexts) for curve in curves) <= 8_000


def brute_force_batch(where: Placement, memory: int, context: int) -> int:
    """Return the largest batch by trying one after the other, at every context on the way."""
    batch = 0
    while all(
        rank.admitted.bytes(earlier, batch + 1) <= memory for rank in where.ranks for earlier in range(1, context + 1)
    ):
        batch += 1
    return batch * where.dp


@pytest.mark.parametrize(
    "where",
    [
        placement(footprint(10)),
        placement(footprint(10), footprint(7), dp=2),
        placement(footprint(3, Steps.chunk(16)) + footprint(1)),
        placement(footprint(5, Steps.window(8)) + footprint(2, Steps.per_token(4)), footprint(90, Steps.constant())),
    ],
    ids=["one rank", "uneven ranks, two replicas", "chunks", "window, blocks, states"],
)
def test_capacity_is_the_largest_batch_that_every_rank_holds(where: Placement) -> None:
    """Against trying batches one after the other; the spare bytes are those of the fullest rank."""
    [curve] = figures.capacity_curves([subject(where, 90)], memory=900)
    assert curve.contexts == tuple(range(1, 91))
    assert list(curve.values) == [brute_force_batch(where, 900, context) for context in curve.contexts]
    assert curve.spare_bytes is not None
    for context, batch, spare in zip(curve.contexts, curve.values, curve.spare_bytes, strict=True):
        local = batch // where.dp
        needed = [
            max(int(rank.admitted.bytes(n, local)) for n in range(1, context + 1)) for rank in where.ranks if local
        ]
        assert spare == 900 - max(needed, default=0)


def test_the_low_steps_of_a_capacity_curve_are_exact_between_its_points() -> None:
    """A straight line through the points passes through the true batch at every context of the lowest steps."""
    memory, unit = 10_000_000, 100
    [curve] = figures.capacity_curves([subject(placement(footprint(unit)), 50_000)], memory, points=16, steps=40)
    checked = 0
    for (low, before), (high, after) in pairwise(zip(curve.contexts, curve.values, strict=True)):
        if before > memory // (unit * 50_000) + 39:
            continue
        for context in range(low, high + 1, max((high - low) // 50, 1)):
            line = before + Fraction((after - before) * (context - low), high - low)
            assert line == memory // (unit * context)
            checked += 1
    assert checked > 500


def test_contexts_at_which_any_batch_fits_are_left_out() -> None:
    """A prefix of 100 tokens that all sequences share costs nothing for a sequence more."""
    shared = footprint(10, Steps.per_token().capped(100).once()) + footprint(10, Steps.per_token(start=100))
    [curve] = figures.capacity_curves([subject(placement(shared), 200, low=100)], memory=5_000)
    assert curve.contexts[0] == 101
    assert curve.values[0] == 400
    with pytest.raises(BadInput, match="does not grow with the batch"):
        figures.capacity_curves([subject(placement(shared), 100, low=100)], memory=5_000)


def test_a_budget_smaller_than_one_token_is_refused_with_both_numbers() -> None:
    """The message names what there is and what one sequence needs."""
    with pytest.raises(
        BadInput, match="9 bytes does not hold one sequence of model at context 1, which needs 10 bytes"
    ):
        figures.capacity_curves([subject(placement(footprint(4), footprint(10)), 100)], memory=9)


def test_pages_are_not_taken_for_bytes() -> None:
    """A placement whose memory is handed out in units is refused: its batch is not bytes divided by bytes."""
    group = BlockGroup(1, 16, Retention.all())
    rank = Rank(0, 0, footprint(10), footprint(10), (Pool("all", 160, 1, Fraction(1), (group,)),))
    with pytest.raises(UnsupportedByEngine, match="pages"):
        figures.capacity_curves([subject(Placement((rank,)), 100)], memory=10_000)


@pytest.mark.parametrize("high", [1, 7, 1000, 131_072, 10_000_019])
@pytest.mark.parametrize("unit", [1, 36_864, 10**15])
def test_ticks_are_multiples_of_a_power_of_two_and_say_so_exactly(high: int, unit: int) -> None:
    """Every label, read back, is the value it stands at; the labels use IEC units."""
    figure = figures.context_figure(figures.context_curves([subject(placement(footprint(unit)), high)], batch=1))
    meta = figure["layout"]["meta"]
    lists = [(name, scale) for name in ("xaxis", "yaxis") for scale in ("linear", "log")]
    for name, scale in lists:
        whole = {key: meta["scales"][scale][f"{name}.{key}"] for key in ("tickvals", "ticktext")}
        for ticks in (whole, *meta["zoom"][name][scale]):
            for value, text in zip(ticks["tickvals"], ticks["ticktext"], strict=True):
                assert re.fullmatch(r"[0-9,.]+( ([KMGTPE]iB|bytes)|K|Mi)?", text)
                if 0 < value < 2**63:
                    assert (parse_bytes if name == "yaxis" else parse_tokens)(
                        text.replace(",", "").removesuffix(" bytes")
                    ) == value
        assert 1 <= len(whole["tickvals"]) <= 20
        steps = {after - before for before, after in pairwise(whole["tickvals"])}
        if scale == "linear" and steps:
            assert len(steps) == 1
            assert steps.pop().bit_count() == 1
        if scale == "log":
            assert all(value.bit_count() == 1 for value in whole["tickvals"])


def test_finer_ticks_are_there_for_who_zooms_in() -> None:
    """From list to list there are more ticks, and each linear list contains the one before it."""
    figure = figures.context_figure(figures.context_curves([subject(placement(footprint(1000)), 131_072)], batch=1))
    lists = [set(ticks["tickvals"]) for ticks in figure["layout"]["meta"]["zoom"]["xaxis"]["linear"]]
    assert len(lists) == 7
    assert all(coarse < fine for coarse, fine in pairwise(lists))


def test_the_scales_keep_every_value_in_sight() -> None:
    """The lowest and the highest value lie inside the axes, linear and logarithmic."""
    curves = figures.context_curves([subject(placement(footprint(1000)), 131_072)], batch=3)
    scales = figures.context_figure(curves)["layout"]["meta"]["scales"]
    low, high = curves[0].values[0], curves[0].values[-1]
    assert scales["linear"]["yaxis.range"][0] <= low < high < scales["linear"]["yaxis.range"][1]
    assert 10 ** scales["log"]["yaxis.range"][0] < low < high < 10 ** scales["log"]["yaxis.range"][1]
    assert scales["log"]["xaxis.range"] == pytest.approx([-0.154, 5.425], abs=0.001)  # log10 of 0.7 and 266,000


def test_the_hover_text_is_exact() -> None:
    """Every point carries its bytes, unrounded, beside the readable figure."""
    [curve] = figures.context_curves([subject(placement(footprint(36_864)), 4096)], batch=8)
    [trace] = figures.context_figure([curve])["data"]
    texts = dict(zip(trace["x"], trace["text"], strict=True))
    assert texts[4096] == "1.12 GiB  (1,207,959,552 bytes)"
    assert [int(re.sub(r".*\(|[^0-9]|bytes", "", text)) for text in trace["text"] if "(" in text] == [
        value for value in trace["y"] if value >= 1024
    ]


def test_a_curve_turns_pale_beyond_what_its_model_was_trained_for() -> None:
    """The trained maximum is marked, the two parts meet there, and the legend names the model once."""
    where = placement(footprint(10))
    figure = figures.context_figure(figures.context_curves([subject(where, 4096, trained=1024)], batch=1))
    within, beyond, mark = figure["data"]
    assert within["x"][-1] == beyond["x"][0] == 1024
    assert beyond["x"][-1] == 4096
    assert (beyond["opacity"], beyond["showlegend"]) == (0.55, False)
    assert (mark["name"], mark["x"], mark["y"]) == ("trained maximum", [1024], [10_240])


def test_a_range_wholly_beyond_the_trained_maximum_is_pale_and_named() -> None:
    """Such a curve has no part within, so that its pale part is the one in the legend."""
    where = placement(footprint(10))
    [trace] = figures.context_figure(figures.context_curves([subject(where, 400, low=200, trained=100)], batch=1))[
        "data"
    ]
    assert (trace["opacity"], trace["showlegend"], trace["name"]) == (0.55, True, "model")


def test_one_model_shows_its_weights_and_where_the_cache_passes_them() -> None:
    """The line lies at the weights; the mark at the first context whose cache is larger."""
    known = {"weights_bytes": 5_004, "passes_weights_at": 501}
    curves = figures.context_curves([subject(placement(footprint(10)), 1000, **known)], batch=1)
    _, weights, crossing = figures.context_figure(curves)["data"]
    assert (weights["x"], weights["y"]) == ([1, 1000], [5_004, 5_004])
    assert (crossing["x"], crossing["text"]) == ([501], ["501"])
    values = dict(zip(curves[0].contexts, curves[0].values, strict=True))
    assert values[500] <= 5_004 < values[501]


def test_weights_far_above_the_cache_do_not_flatten_it() -> None:
    """The linear picture ends above the cache; the logarithmic one shows both."""
    curves = figures.context_curves([subject(placement(footprint(10)), 1000, weights_bytes=10**9)], batch=1)
    scales = figures.context_figure(curves)["layout"]["meta"]["scales"]
    assert not figures.weights_in_view(curves[0])
    assert scales["linear"]["yaxis.range"][1] < 11_000
    assert 10 ** scales["log"]["yaxis.range"][1] > 10**9


def test_several_models_show_no_weights() -> None:
    """Lines for every model's weights would crowd the picture."""
    subjects = [Subject(name, placement(footprint(10)), 1, 100, None, 500, 51) for name in ("a", "b")]
    names = [trace["name"] for trace in figures.context_figure(figures.context_curves(subjects, batch=1))["data"]]
    assert names == ["a", "b"]


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours by WCAG 2.2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("paper", ["#ffffff", "#14181d"], ids=["light", "dark"])
def test_colours_stand_out_from_light_and_dark_paper(paper: str) -> None:
    """WCAG 2.2 asks of graphics for a contrast of 3; the page's two papers are those of the page."""
    assert all(contrast(colour, paper) >= 3 for colour in figures.COLOURS)


def test_every_line_differs_in_colour_or_dashes() -> None:
    """As many models as a picture takes, none like another."""
    subjects = [Subject(f"m{index}", placement(footprint(10)), 1, 50) for index in range(figures.MAX_CURVES)]
    data = figures.context_figure(figures.context_curves(subjects, batch=1))["data"]
    assert len({(trace["line"]["color"], trace["line"]["dash"]) for trace in data}) == figures.MAX_CURVES == 16


@pytest.mark.parametrize("kind", ["context", "capacity"])
@pytest.mark.parametrize("high", [1, 5000])
def test_plotly_accepts_the_figures(kind: str, high: int) -> None:
    """The schema of plotly knows every property that the plain dicts set."""
    from plotly.graph_objects import Figure

    known: dict[str, Any] = {"trained": 1024, "weights_bytes": 9_000, "passes_weights_at": 901}
    subjects = [subject(placement(footprint(10)), high, **known)]
    figure = (
        figures.context_figure(figures.context_curves(subjects, batch=1))
        if kind == "context"
        else figures.capacity_figure(figures.capacity_curves(subjects, memory=10**6))
    )
    assert Figure(figure).to_plotly_json()["layout"]["meta"] == figure["layout"]["meta"]


def test_landmarks_are_contexts_of_the_picture() -> None:
    """Powers of two, the ends, and the trained maximum, all of them drawn."""
    curves = figures.context_curves([subject(placement(footprint(10)), 5000, low=3, trained=1500)], batch=1)
    assert figures.landmarks(curves) == [3, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1500, 2048, 4096, 5000]


def test_values_as_json_are_the_values_drawn() -> None:
    """Ints, in the order of the contexts."""
    curve = Curve(subject(placement(footprint(10)), 2), (1, 2), (10, 20))
    assert curve.to_json() == {
        "model": "model",
        "max_context": None,
        "context": [1, 2],
        "total_bytes": [10, 20],
        "weights_bytes": None,
        "cache_passes_weights_at": None,
    }


def test_points_of_a_figure_are_the_points_of_its_curves() -> None:
    """No value is lost or changed on the way into the figure, whatever the parts it is split into."""
    curves = figures.context_curves([subject(placement(footprint(10)), 3000, trained=1000)], batch=2)
    assert sorted(set(drawn(figures.context_figure(curves)))) == list(
        zip(curves[0].contexts, curves[0].values, strict=True)
    )
