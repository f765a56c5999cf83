"""`hf:org/name`: a model's config from the local Hugging Face cache, and from the network only when asked.

The cache's folder layout (`models--org--name/refs/REVISION`, `snapshots/COMMIT/`) is read without any library; the
optional download goes through huggingface_hub.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from kvcalc.errors import BadInput, KvcalcError, MissingExtra

PREFIX = "hf:"
CONFIG = "config.json"
# Seconds to wait for the first answer: longer silence reads as a hang.
TIMEOUT = 5

_REPOSITORY = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96})(?:@(?P<revision>[\w./-]{1,100}))?")


class HubError(KvcalcError):
    """A model that the Hugging Face Hub does not give: not found, gated, or out of reach (exit code 1)."""


def cached_config(reference: str) -> Path:
    """Return the cached `config.json` of `hf:org/name` or `hf:org/name@revision`; BadInput if it is not cached."""
    name, revision = _split(reference)
    folder = cache_folder() / f"models--{name.replace('/', '--')}"
    found = _snapshot(folder, revision) / CONFIG
    if not found.is_file():
        at = f" at revision {revision}" if revision != "main" else ""
        raise BadInput(f"{PREFIX}{name}{at} is not in the local Hugging Face cache; add --download to fetch its config")
    return found


def downloaded_config(reference: str) -> Path:
    """Return the `config.json` of `hf:org/name`, fetched into the local cache if it is not there yet.

    Progress goes to stderr. HF_HUB_OFFLINE is honoured. MissingExtra without huggingface_hub; HubError in one line for
    a model that does not exist, is gated, or cannot be reached within a few seconds.
    """
    name, revision = _split(reference)
    try:
        return cached_config(reference)
    except BadInput:
        pass
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise HubError(f"{PREFIX}{name} is not cached and HF_HUB_OFFLINE is set; unset it to download")
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", str(TIMEOUT))
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", str(TIMEOUT))
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError:
        raise MissingExtra("hf", "downloading from the Hugging Face Hub") from None
    try:
        return Path(huggingface_hub.hf_hub_download(name, CONFIG, revision=revision))
    except errors.GatedRepoError:
        raise HubError(f"{PREFIX}{name} is gated: accept its terms on the Hub and set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        raise HubError(f"{PREFIX}{name}: no such model on the Hub (or it is private: set HF_TOKEN)") from None
    except errors.RevisionNotFoundError:
        raise HubError(f"{PREFIX}{name} has no revision '{revision}'") from None
    except errors.EntryNotFoundError:
        raise HubError(f"{PREFIX}{name} has no {CONFIG}; name another file or write a spec") from None
    except Exception as error:  # every HTTP client that huggingface_hub uses has its own errors for this
        reason = str(error).split("\n", 1)[0][:200] or type(error).__name__
        raise HubError(f"{PREFIX}{name} cannot be fetched: the Hub is out of reach ({reason})") from None


def cache_folder() -> Path:
    """Return the Hub's cache folder by the library's own variables: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME."""
    if folder := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(folder).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "hub"


def _split(reference: str) -> tuple[str, str]:
    """Return (org/name, revision) of `hf:org/name[@revision]`."""
    match = _REPOSITORY.fullmatch(reference.removeprefix(PREFIX))
    if not match or ".." in reference:
        raise BadInput(f"'{reference}' is not a Hub model; write hf:org/name, for example hf:openai-community/gpt2")
    return match["name"], match["revision"] or "main"


def _snapshot(folder: Path, revision: str) -> Path:
    """Return the snapshot folder of a branch, tag or commit."""
    pointer = folder / "refs" / revision
    try:
        commit = pointer.read_text(encoding="ascii").strip()[:64] if pointer.is_file() else revision
    except (OSError, UnicodeDecodeError):
        commit = revision
    return folder / "snapshots" / (commit if re.fullmatch(r"[\w.-]+", commit) else revision)
