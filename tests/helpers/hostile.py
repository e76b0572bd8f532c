"""What the fuzz tests share: how many inputs (MAXRL_FUZZ times as many as usual), and hostile
values."""

import os

import pytest

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

TIMES = int(
    os.environ.get("MAXRL_FUZZ", "1")
)  # 1: the same inputs every time; above: other ones every time

NUMBERS = [
    0,
    -1,
    1,
    2,
    3,
    7,
    64,
    10**9,
    2**31,
    2**63,
    10**30,
    10**400,
    0.0,
    -0.5,
    1.5,
    1e300,
    float("nan"),
    float("inf"),
]
TEXTS = [
    "",
    "\0",
    "..",
    "/",
    "../../x",
    "/etc/passwd",
    "a" * 400,
    "\ud800",
    "{{ 1 }}",
    "%s%n",
    "é",
    "-1",
    "NaN",
    "1e999",
    "__class__",
]


def nested(depth: int):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(NUMBERS),
    st.integers(),
    st.floats(),
    st.sampled_from(TEXTS),
    st.text(max_size=20),
)
VALUES = st.one_of(
    SCALARS,
    st.sampled_from([[], {}, [[]], [{}], nested(99), nested(500), [None], {"a": {}}]),
    st.recursive(
        SCALARS,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=6,
    ),
)


def many(examples: int):
    """Settings of a test with so many inputs."""
    return settings(
        max_examples=examples * TIMES,
        deadline=None,
        derandomize=TIMES == 1,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def sentence(what, function, *errors):
    """function() where it may raise `errors`, each with a sentence; anything else is a failure.
    Its result, or None."""
    try:
        return function()
    except errors as error:
        said = str(error)
        assert said.strip() and len(said) < 1000, f"no sentence: {said[:100]!r}"
        assert "\n" not in said.replace(str(what), ""), said
        return None
