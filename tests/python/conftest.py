"""Fixtures of the tests of the Python package."""
import pytest
from samples import MODEL


@pytest.fixture(scope="module")
def engine():
    import kvrun
    with kvrun.Engine(MODEL, device="cpu") as e:
        yield e
