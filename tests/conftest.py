"""What every test shares: hypothesis profiles, an environment without user specs, and skips for missing extras.

`pytest` runs hypothesis with the deterministic profile `ci`; `HYPOTHESIS_PROFILE=thorough pytest` looks further.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

# The machine that runs the tests may be slow or busy: time limits are the runner's business, not each example's.
_PATIENT = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", _PATIENT, max_examples=150, derandomize=True)
settings.register_profile("thorough", _PATIENT, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, the tests marked `torch` where torch is not installed."""
    if find_spec("torch") is not None:
        return
    for item in items:
        if item.get_closest_marker("torch"):
            item.add_marker(pytest.mark.skip(reason="torch is not installed (pip install 'kvcalc[torch]')"))


@pytest.fixture(autouse=True, scope="session")
def only_bundled_specs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the spec folders of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KVCALC_SPECS", raising=False)
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("no-user-configuration")))
        yield
