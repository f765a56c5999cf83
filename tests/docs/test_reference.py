"""The reference is complete: every command, kind, variant, format, engine and public name has its place."""

from __future__ import annotations

import math
import re

import click
import pytest

import kvcalc
from kvcalc.cli import COMMANDS, cli
from kvcalc.engines import ENGINES, find_engine
from kvcalc.formats import FORMATS
from kvcalc.spec.documented import Documented
from kvcalc.spec.kinds import KINDS, STATE_VARIANTS
from kvcalc.spec.model import Source, SpecFile
from tests.docs.render import ROOT

CLI, KINDS_PAGE = ROOT / "docs" / "cli.md", ROOT / "docs" / "kinds.md"
_FORMULA = re.compile(r"^\| `(?P<variant>\w+)` \| (?P<conv>[^|]+) \| (?P<state>[^|]+) \|$", re.M)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_documented(name: str) -> None:
    """It has a section with an example that is run, its help page, and a line in the README."""
    section = CLI.read_text(encoding="utf-8").partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert re.search(rf"^```sh[^\n]*\nkvcalc {name}\b", section, re.M)
    assert f"<!-- begin help-{name} -->" in section
    assert f"docs/cli.md#{name}" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_sentence_of_help_and_an_example(name: str) -> None:
    """`--help` says what it does and shows a call."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.help
    assert command.epilog
    assert command.epilog.startswith(f"Example: kvcalc {name}")


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_has_a_section(name: str) -> None:
    """With a formula, a sum by hand that is run, and what the program says of it."""
    section = KINDS_PAGE.read_text(encoding="utf-8").partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert re.search(r"^    \S", section, re.M)
    assert "\nsame(" in section
    assert f"<!-- begin kind-{name} -->" in section


def _formulas() -> dict[str, tuple[str, str]]:
    """Return variant -> the formulas of its convolution part and its recurrent part, as the page writes them."""
    section = KINDS_PAGE.read_text(encoding="utf-8").partition("\n## state\n")[2].partition("<!-- begin")[0]
    return {match["variant"]: (match["conv"], match["state"]) for match in _FORMULA.finditer(section)}


def test_every_variant_of_state_has_its_formula() -> None:
    """The table of formulas names exactly the variants there are."""
    assert set(_formulas()) == set(STATE_VARIANTS)


@pytest.mark.parametrize("name", STATE_VARIANTS)
def test_the_formula_of_a_variant_is_what_it_keeps(name: str) -> None:
    """The formula in the table, read as arithmetic, gives the elements of the entries, for dimensions all unlike."""
    variant = STATE_VARIANTS[name]
    fields = [field for field in variant.model_fields if variant.model_fields[field].annotation is int]
    dimensions = dict(zip(fields, (3, 5, 7, 11, 13, 17), strict=False))
    kept = {"conv": 0, "ssm": 0}
    for entry in variant.model_validate(dimensions).entries():
        kept[entry.role] += math.prod(size for _, size in entry.axes)
    conv, state = _formulas()[name]
    assert (_value(conv, dimensions), _value(state, dimensions)) == (kept["conv"], kept["ssm"])


def _value(formula: str, dimensions: dict[str, int]) -> int:
    arithmetic = formula.partition(",")[0].replace("×", "*").replace("²", "**2").replace("none", "0")
    return int(eval(arithmetic, {"__builtins__": {}}, dimensions))


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_has_a_section(name: str) -> None:
    """With an example that is run and its options."""
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert re.search(r"^```sh\nkvcalc size ", section, re.M)
    assert f"<!-- begin options-{name} -->" in section


RECORDS: dict[str, type[Documented]] = {
    "spec": SpecFile,
    "source": Source,
    **KINDS,
    **STATE_VARIANTS,
    **{f"{name} options": find_engine(name).options_class for name in ENGINES},
}


@pytest.mark.parametrize("name", RECORDS)
def test_every_field_that_users_write_is_explained(name: str) -> None:
    """Each has a sentence below it, which tables, `kvcalc engines`, errors and the JSON schema show."""
    record = RECORDS[name]
    explained = record.field_docs()
    assert set(explained) == set(record.model_fields) - {"kind", "variant"}
    shown = {field: part.get("description") for field, part in record.model_json_schema()["properties"].items()}
    assert {field: shown[field] for field in explained} == explained


def test_every_format_is_named() -> None:
    """The table is generated, and from all of them."""
    formats = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    assert not [name for name in FORMATS if f"| `{name}` |" not in formats]


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    """What `dir(kvcalc)` lists, docs/python.md mentions."""
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert [name for name in dir(kvcalc) if not name.startswith("_") and name not in page] == []
