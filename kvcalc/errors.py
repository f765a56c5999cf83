"""What can go wrong, as a few exceptions. The core raises them; only the command line prints and exits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_MOST_PROBLEMS = 50
_LONGEST_NAME = 100  # a longer one is no misspelt name, and comparing it would take long


class KvcalcError(Exception):
    """Base of every error that kvcalc raises on purpose; `exit_code` is what the command line exits with."""

    exit_code = 1


class BadInput(KvcalcError):
    """A name, path, option or value from the user that cannot be used (exit code 2)."""

    exit_code = 2


class UnsupportedByEngine(KvcalcError):
    """The request is well formed, but the engine (or format, or kind) cannot hold it; the message says why."""


class MissingExtra(KvcalcError):
    """An optional dependency is not installed; the message is the one line that installs it."""

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the extra '{extra}': pip install 'kvcalc[{extra}]'")


@dataclass(frozen=True)
class Problem:
    """One fault in a file: where (1-based line and column), in which field, and what to do about it."""

    file: str
    line: int
    column: int
    field: str
    message: str

    def __str__(self) -> str:
        """Return `file:line:col: field: message` in one line, whatever the file's own texts contain."""
        field = f"{self.field}: " if self.field else ""
        text = f"{self.file}:{self.line}:{self.column}: {field}{self.message}"
        return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


class SpecError(KvcalcError):
    """One or more faults in a model spec or another input file, one line each: `file:line:col: field: message`.

    Each is listed once, in the order of the file; of very many only the first, and how many more there are.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        found = sorted(dict.fromkeys(problems), key=lambda problem: (problem.file, problem.line, problem.column))
        more = found[_MOST_PROBLEMS:]
        if more:
            rest = Problem(more[0].file, more[0].line, more[0].column, "", f"and {len(more):,} more problems")
            found = [*found[:_MOST_PROBLEMS], rest]
        self.problems = tuple(found)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def did_you_mean(name: str, known: Iterable[str], limit: int = 3) -> str:
    """Return `; did you mean a or b?` for the known names nearest to `name`, or an empty string if none is near."""
    if len(name) > _LONGEST_NAME:
        return ""
    from difflib import get_close_matches  # only an error needs it

    lowered = {candidate.lower(): candidate for candidate in known}
    near = [lowered[match] for match in get_close_matches(name.lower(), lowered, n=limit, cutoff=0.6)]
    return f"; did you mean {' or '.join(near)}?" if near else ""
