"""`hf:org/name`: the local Hugging Face cache, and the network through a library that stands in for huggingface_hub."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from kvcalc import api
from kvcalc.errors import BadInput, MissingExtra
from kvcalc.read import hub
from tests.cli.running import run

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "torch_dtype": "float16",
    "_name_or_path": "somebody/else",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder, the only one that is looked at."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delitem(sys.modules, "huggingface_hub", raising=False)
    return tmp_path


def fill(cache: Path, repository: str = "org/Name", revision: str = "main", commit: str = COMMIT) -> Path:
    """Lay a config out as the library does: a blob, a link to it in a snapshot, a reference."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    for part in ("refs", "blobs", f"snapshots/{commit}"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
    (folder / "refs" / revision).write_text(commit, encoding="ascii")
    (folder / "blobs" / "abc").write_text(json.dumps(CONFIG), encoding="utf-8")
    link = folder / "snapshots" / commit / "config.json"
    link.symlink_to(Path("../../blobs/abc"))
    return link


Install = Callable[[Callable[..., str]], list[str]]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that puts a huggingface_hub with a given download in place; it returns the calls."""

    def one(download: Callable[..., str]) -> list[str]:
        calls: list[str] = []

        def recorded(name: str, file: str, revision: str) -> str:
            calls.append(f"{name}/{file}@{revision}")
            return download(name, file, revision)

        library, errors = types.ModuleType("huggingface_hub"), types.ModuleType("huggingface_hub.errors")
        http = type("HfHubHTTPError", (OSError,), {})
        missing = type("RepositoryNotFoundError", (http,), {})
        for name, parent in (("RepositoryNotFoundError", missing), ("GatedRepoError", missing),
                             ("RevisionNotFoundError", http), ("EntryNotFoundError", http)):  # fmt: skip
            setattr(errors, name, parent if parent.__name__ == name else type(name, (parent,), {}))
        library.__dict__.update(hf_hub_download=recorded, errors=errors)
        monkeypatch.setitem(sys.modules, "huggingface_hub", library)
        monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)
        return calls

    return one


def raising(name: str, text: str = "some\nlong\npage") -> Callable[..., str]:
    """Return a download that fails with an error of the library, or of Python, by its name."""

    def download(*_: str) -> str:
        errors = sys.modules["huggingface_hub.errors"]
        kind = getattr(errors, name, None) or {"TimeoutError": TimeoutError, "RuntimeError": RuntimeError}[name]
        raise kind(text)

    return download


def test_a_cached_model_is_read_without_library_or_network(cache: Path) -> None:
    """By branch, tag with slashes, or commit; named after its repository."""
    fill(cache)
    fill(cache, revision="refs/pr/1", commit="b" * 40)
    for reference in ("hf:org/Name", "hf:org/Name@main", f"hf:org/Name@{COMMIT}", "hf:org/Name@refs/pr/1"):
        spec = api.load(reference)
        assert (spec.name, spec.file.aliases) == ("name", ("org/Name",))
    assert api.load("hf:org/Name").file.source.url == "https://huggingface.co/org/Name/blob/main/config.json"
    assert api.size("hf:org/Name", context=10).total_bytes == 10 * 2 * 2 * 64 * 2


def test_the_folder_of_a_snapshot_is_named_after_its_repository(cache: Path) -> None:
    """Not after a commit."""
    assert api.load(fill(cache)).name == "name"
    assert api.load(fill(cache, "org/Other").parent).name == "other"


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HF_HUB_CACHE": "/a/b"}, "/a/b"),
        ({"HUGGINGFACE_HUB_CACHE": "/a/c"}, "/a/c"),
        ({"HF_HOME": "/a/home"}, "/a/home/hub"),
        ({"XDG_CACHE_HOME": "/a/xdg"}, "/a/xdg/huggingface/hub"),
        ({"HOME": "/a/me", "XDG_CACHE_HOME": ""}, "/a/me/.cache/huggingface/hub"),
        ({"HF_HOME": "~nobody-of-that-name/x"}, "~nobody-of-that-name/x/hub"),
    ],
)
def test_the_cache_lies_where_the_library_puts_it(
    variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the library's own variables."""
    monkeypatch.delenv("HF_HUB_CACHE")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hub.cache_folder() == Path(folder)


@pytest.mark.parametrize(
    "reference",
    ["hf:gpt2", "hf:", "hf:a/b/c", "hf:../../etc", "hf:a/..", "hf:a/b@../../x", "hf:a b/c", "hf:a/b@", "hf:-a/b"],
)
def test_what_is_no_repository_is_a_usage_error(reference: str) -> None:
    """Nothing outside the cache can be named."""
    result = run("size", reference, "--ctx", "1")
    assert result.code == 2
    assert result.err.startswith(f"error: '{reference}' is not a Hub model; write hf:org/name, for example hf:openai")


def test_a_model_that_is_not_cached_needs_the_network_to_be_allowed(cache: Path) -> None:
    """Nothing is fetched unless asked for; the catalogue may have the model."""
    assert run("size", "hf:org/name", "--ctx", "1").err == (
        f"error: hf:org/name is not in the local Hugging Face cache ({cache}); add --download to fetch its config\n"
    )
    err = run("size", "hf:openai-community/gpt2", "--ctx", "1").err
    assert "or drop 'hf:': the catalogue has it as gpt2-small" in err
    with pytest.raises(BadInput, match="at revision v9 is not in the local"):
        api.load("hf:org/name@v9")


def test_a_reference_cannot_lead_out_of_the_cache(cache: Path) -> None:
    """Whatever stands in refs."""
    fill(cache)
    pointer = cache / "models--org--Name" / "refs" / "main"
    for text in ("../../..", "a/b", "x" * 5000, "\0"):
        pointer.write_text(text, encoding="ascii")
        with pytest.raises(BadInput, match="is not in the local"):
            api.load("hf:org/Name")
    pointer.write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="is not in the local"):
        api.load("hf:org/Name")


def test_a_download_goes_through_the_library(cache: Path, install: Install) -> None:
    """Once: what is cached is not asked for again."""
    calls = install(lambda *_: str(fill(cache)))
    for _ in range(2):
        result = run("size", "hf:org/Name", "--ctx", "10", "--download")
        assert (result.code, result.err) == (0, "")
    assert calls == ["org/Name/config.json@main"]


COMMANDS = (
    "size {} --ctx 1",
    "explain {} --ctx 1",
    "compare {} gpt2 --ctx 1",
    "show {}",
    "fit {} --ctx 1 --kv-memory 1GiB",
    "plot context {} --json",
    "import {}",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_may_download(command: str, cache: Path, install: Install) -> None:
    """With the same option."""
    install(lambda *_: str(fill(cache)))
    result = run(*command.format("hf:org/Name").split(), "--download")
    assert result.code == 0, result.err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("GatedRepoError", "hf:org/name is gated: accept its terms on the Hub and set HF_TOKEN"),
        ("RepositoryNotFoundError", "hf:org/name: no such model on the Hub (or it is private: set HF_TOKEN)"),
        ("RevisionNotFoundError", "hf:org/name has no revision 'main'"),
        ("EntryNotFoundError", "hf:org/name has no config.json; name another file or write a spec"),
        ("TimeoutError", "hf:org/name cannot be fetched: some"),
        ("RuntimeError", "hf:org/name cannot be fetched: the Hub is out of reach (some)"),
    ],
)
def test_what_the_hub_does_not_give_is_told_in_one_line(error: str, message: str, install: Install) -> None:
    """Exit code 1, and no page of the library's."""
    install(raising(error))
    result = run("size", "hf:org/name", "--ctx", "1", "--download")
    assert (result.code, result.err) == (1, f"error: {message}\n")


def test_offline_is_respected(monkeypatch: pytest.MonkeyPatch, install: Install) -> None:
    """The library is not even asked."""
    calls = install(raising("RuntimeError"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = run("size", "hf:org/name", "--ctx", "1", "--download")
    assert result.err == "error: hf:org/name is not cached and HF_HUB_OFFLINE is set; unset it to download\n"
    assert calls == []


def test_silence_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, install: Install) -> None:
    """The library reads its limits when it is imported."""
    import os

    for name in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    install(raising("TimeoutError"))
    run("size", "hf:org/name", "--ctx", "1", "--download")
    assert os.environ["HF_HUB_ETAG_TIMEOUT"] == os.environ["HF_HUB_DOWNLOAD_TIMEOUT"] == str(hub.TIMEOUT)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what to install."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"needs the extra 'hf': pip install 'kvcalc\[hf\]'"):
        api.load("hf:org/name", download=True)
