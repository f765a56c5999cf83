"""Finding models by name, alias and path, and the index that makes it quick."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcalc.errors import BadInput, SpecError
from kvcalc.spec import load
from tests.unit.test_resolve import PLAIN


@pytest.fixture
def user_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a user's spec folder with one model in it: `mine.yaml`, called small, with the alias tiny."""
    folder = tmp_path / "specs"
    (folder / "family").mkdir(parents=True)
    (folder / "family" / "mine.yaml").write_text(PLAIN + "aliases: [tiny]\n", encoding="utf-8")
    monkeypatch.setenv("KVCALC_SPECS", str(folder))
    return folder


def spec_folder(tmp_path: Path, **files: str) -> Path:
    """Return a folder of specs with the given texts."""
    for stem, text in files.items():
        (tmp_path / f"{stem}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", ["gpt2-small", "gpt2", "openai-community/gpt2", "GPT2-Small", "OpenAI-Community/GPT2"])
def test_bundled_models_have_names_and_aliases_in_any_case(name: str) -> None:
    """Hugging Face ids are aliases."""
    assert load.load(name).name == "gpt2-small"


def test_names_are_listed_without_parsing_a_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shell completion reads the index only."""
    monkeypatch.setattr(load, "load_file", lambda path: pytest.fail(f"parsed {path}"))

    names = load.names()

    assert names["gpt2"] == "gpt2-small"
    assert names["gpt2-small"] == "gpt2-small"


@pytest.mark.parametrize("name", ["mine", "small", "tiny"])
def test_user_specs_are_found_by_file_name_name_and_alias(user_specs: Path, name: str) -> None:
    """In folders below `$KVCALC_SPECS`."""
    assert load.load(name).name == "small"
    assert "mine" in load.names()


def test_user_specs_come_before_bundled_ones(user_specs: Path) -> None:
    """A file called gpt2-small.yaml is what gpt2-small means."""
    (user_specs / "gpt2-small.yaml").write_text(PLAIN, encoding="utf-8")

    assert load.load("gpt2-small").name == "small"


def test_the_user_configuration_folder_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `$KVCALC_SPECS`, in `kvcalc/specs` of the configuration folder."""
    folder = tmp_path / "kvcalc" / "specs"
    folder.mkdir(parents=True)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("KVCALC_SPECS", f"{tmp_path / 'none'}:~nobody-of-this-name/specs")

    assert load.user_folders() == (folder,)


def test_a_broken_user_spec_is_reported_when_it_is_asked_for(user_specs: Path) -> None:
    """And stands in nobody's way before."""
    (user_specs / "broken.yaml").write_text("name: x\n", encoding="utf-8")

    assert load.load("tiny").name == "small"
    with pytest.raises(SpecError, match=r"broken\.yaml:1:1: architecture: is missing"):
        load.load("broken")


def test_a_changed_file_is_read_again(user_specs: Path) -> None:
    """An edit in the same session is not ignored."""
    path = user_specs / "family" / "mine.yaml"
    assert len(load.load(str(path)).layers) == 4

    path.write_text(PLAIN.replace("layers: 4", "layers: 12"), encoding="utf-8")

    assert len(load.load(str(path)).layers) == 12


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("gpt2-smal", "no model 'gpt2-smal'; did you mean gpt2-small or gpt2-xl?"),
        ("zzzzzzzz", "no model 'zzzzzzzz'; 'kvcalc models' lists them, a path must start with ./ or end in .yaml"),
        ("", "no model ''; 'kvcalc models' lists them, a path must start with ./ or end in .yaml"),
        ("./none.yaml", "./none.yaml: no such file"),
        ("none.gguf", "none.gguf: no such file"),
        ("~nobody-of-this-name/x.yaml", "~nobody-of-this-name/x.yaml: no such file"),
        ("./a\0b.yaml", "./a\0b.yaml: no such file"),
    ],
)
def test_what_is_not_there_is_refused_with_the_nearest(model: str, message: str) -> None:
    """Names get suggestions, paths are named."""
    with pytest.raises(BadInput) as caught:
        load.load(model)
    assert str(caught.value).startswith(message.removesuffix("?"))


def test_a_name_of_absurd_length_is_refused() -> None:
    """Longer than the system's longest path."""
    with pytest.raises(BadInput, match="no model 'aaa"):
        load.load("a" * 5000)


def test_a_folder_is_no_yaml_spec(tmp_path: Path) -> None:
    """Reading it as one says so, in one line."""
    with pytest.raises(SpecError) as caught:
        load.load_file(tmp_path)
    assert str(caught.value) == f"{tmp_path}:1:1: cannot be read: Is a directory"


def test_messages_show_bundled_specs_without_their_folder() -> None:
    """Where a wheel is installed is of no use to a reader."""
    assert load.load("gpt2-small").origin == "model_specs/gpt2/gpt2-small.yaml"


def test_the_index_lists_names_files_and_aliases(tmp_path: Path) -> None:
    """Sorted by name."""
    other = PLAIN.replace("name: small", "name: another")
    text = load.build_index(spec_folder(tmp_path, b=PLAIN + "aliases: [tiny]\n", a=other))

    assert json.loads(text) == {
        "models": {"another": {"file": "a.yaml", "aliases": []}, "small": {"file": "b.yaml", "aliases": ["tiny"]}}
    }
    assert list(json.loads(text)["models"]) == ["another", "small"]


@pytest.mark.parametrize("second", [PLAIN, PLAIN.replace("name: small", "name: other") + "aliases: [SMALL]\n"])
def test_one_name_cannot_mean_two_models(tmp_path: Path, second: str) -> None:
    """Neither as a name nor as an alias, in any case."""
    with pytest.raises(BadInput, match=r"b\.yaml: the name '(small|SMALL)' already belongs to"):
        load.build_index(spec_folder(tmp_path, a=PLAIN, b=second))
