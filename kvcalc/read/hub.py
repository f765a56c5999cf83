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
# Seconds to wait for an answer: longer silence reads as a hang.
TIMEOUT = 5

_REPOSITORY = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96})(?:@(?P<revision>[\w./-]{1,100}))?", re.ASCII)
_YES = ("1", "ON", "YES", "TRUE")


class HubError(KvcalcError):
    """A model that the Hugging Face Hub does not give: not found, gated, or out of reach (exit code 1)."""


def repository(reference: str) -> str:
    """Return `org/name` of `hf:org/name` or `hf:org/name@revision`; BadInput if it is neither."""
    return _split(reference)[0]


def address(reference: str) -> str:
    """Return the address of the config on the Hub, at the revision that was asked for."""
    name, revision = _split(reference)
    return f"https://huggingface.co/{name}/blob/{revision}/{CONFIG}"


def cached_config(reference: str) -> Path:
    """Return the cached `config.json` of `hf:org/name` or `hf:org/name@revision`; BadInput if it is not cached."""
    name, revision = _split(reference)
    found = _cached(name, revision)
    if found is None:
        at = f" at revision {revision}" if revision != "main" else ""
        where = f"is not in the local Hugging Face cache ({cache_folder()})"
        raise BadInput(f"{PREFIX}{name}{at} {where}; add --download to fetch its config{_in_catalogue(name)}")
    return found


def downloaded_config(reference: str) -> Path:
    """Return the `config.json` of `hf:org/name`, fetched into the local cache if it is not there yet.

    Progress goes to stderr. HF_HUB_OFFLINE is honoured. MissingExtra without huggingface_hub; HubError in one line for
    a model that does not exist, is gated, or cannot be reached within a few seconds.
    """
    name, revision = _split(reference)
    found = _cached(name, revision)
    if found is not None:
        return found
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in _YES:
        raise HubError(f"{PREFIX}{name} is not cached and HF_HUB_OFFLINE is set; unset it to download")
    # Read when huggingface_hub is imported: it waits longer unless told otherwise.
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
    except OSError as error:
        raise HubError(f"{PREFIX}{name} cannot be fetched: {_first_line(error)}") from None
    except Exception as error:  # every HTTP client that huggingface_hub uses has its own errors for this
        raise HubError(f"{PREFIX}{name} cannot be fetched: the Hub is out of reach ({_first_line(error)})") from None


def cache_folder() -> Path:
    """Return the Hub's cache folder by the library's own variables: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME."""
    if folder := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return _expanded(folder)
    home = os.environ.get("HF_HOME")
    if home:
        return _expanded(home) / "hub"
    return _expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def _expanded(folder: str) -> Path:
    # os.path, unlike pathlib, leaves a ~ whose user does not exist as it is.
    return Path(os.path.expanduser(os.path.expandvars(folder)))


def _split(reference: str) -> tuple[str, str]:
    """Return (org/name, revision) of `hf:org/name[@revision]`."""
    match = _REPOSITORY.fullmatch(reference.removeprefix(PREFIX))
    if not match or ".." in reference:
        raise BadInput(f"'{reference}' is not a Hub model; write hf:org/name, for example hf:openai-community/gpt2")
    return match["name"], match["revision"] or "main"


def _cached(name: str, revision: str) -> Path | None:
    """Return the cached config of a branch, tag or commit, None if there is none."""
    folder = cache_folder() / f"models--{name.replace('/', '--')}"
    pointer = folder / "refs" / revision
    try:
        with pointer.open("rb") as stream:
            commit = stream.read(100).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        commit = revision
    if not re.fullmatch(r"[\w-]{1,100}", commit, re.ASCII):
        return None
    found = folder / "snapshots" / commit / CONFIG
    return found if found.is_file() else None


def _in_catalogue(name: str) -> str:
    """Return a hint if the catalogue has the model, for which no config is needed."""
    from kvcalc.spec.load import names

    known = {alias.lower(): model for alias, model in names().items()}
    return f", or drop '{PREFIX}': the catalogue has it as {known[name.lower()]}" if name.lower() in known else ""


def _first_line(error: Exception) -> str:
    text = str(error).strip().split("\n", 1)[0][:200]
    return text or type(error).__name__
