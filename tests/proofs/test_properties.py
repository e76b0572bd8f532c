"""What must hold for any input at all, searched by hypothesis; left out on a machine that does not
have it.
"""

import math

import pytest
import torch

pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from pictures import CORRIDOR, OPEN  # noqa: E402

from maxrl.sampling.drawing import inverse_cdf  # noqa: E402
from maxrl.tasks.maze import MOVES, draw, verify  # noqa: E402

WORDS = st.lists(st.sampled_from(["GRID_START", "GRID_END", "PATH", "WALL", "GOAL", "START", "NEWLINE", "DONE", "\n",
                                  *MOVES, "<eos>", "\x1b[31m"]), max_size=25).map(" ".join)  # fmt: skip
PROMPTS = st.one_of(st.text(), WORDS, WORDS.map(lambda body: f"GRID_START START GOAL {body} GRID_END"),
                    st.sampled_from([CORRIDOR, OPEN]))  # fmt: skip


@settings(max_examples=500, deadline=None, derandomize=True)
@given(PROMPTS, st.one_of(st.text(), WORDS, WORDS.map(lambda words: f"RIGHT {words} DONE")))
def test_verify_and_draw_never_raise(prompt, response):
    verdict = verify(prompt, response)
    assert verdict in (0.0, 1.0)
    plain = draw(prompt, response, False)
    assert plain.isascii() and "\x1b" not in plain
    assert plain.splitlines()[-1].startswith("right" if verdict else "wrong")
    draw(prompt, response, True)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([-math.inf, -80.0, -3.0, 0.0, 1.7, 9.0]), min_size=2, max_size=9),
    st.sampled_from([0.0, 1e-300, 2**-53, 0.5, 1 - 2**-52, 1 - 2**-53, 1.0]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_a_token_of_probability_zero_is_never_drawn(logits, u, dtype):
    """At u = 0 a search to the left gives token 0; near u = 1 a sum of 0.9999999 gives a token
    behind the last one.
    """
    logits = torch.tensor(logits, dtype=dtype)
    if not logits.isfinite().any():
        return
    drawn = inverse_cdf(logits.softmax(-1), torch.tensor([u], dtype=torch.float64)).item()
    assert 0 <= drawn < len(logits) and logits[drawn] > -math.inf
    wrong = torch.searchsorted(logits.softmax(-1).cumsum(-1), torch.tensor(u, dtype=dtype))
    if u == 0 and logits[0] == -math.inf:
        assert logits[wrong] == -math.inf, "the left search is wrong here"
