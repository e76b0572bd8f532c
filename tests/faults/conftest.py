import pytest

from tests.helpers.runs import SHORT


@pytest.fixture
def run(warm):
    """The command of five steps that save after every second."""
    return ("train.py", *SHORT, "--init", warm, "--save-every", 2)
