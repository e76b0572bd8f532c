"""The leaderboard of the speedrun is what its file says."""

import json

from results.speed import speedrun
from tests import ROOT

ROW = {
    "date": "2026-01-02",
    "commit": "abc+",
    "machine": "m",
    "who": "w",
    "arm": "a",
    "options": "-x",
}


def row(seconds: float, one: float, eight: float, **others) -> dict:
    return ROW | {"seconds": seconds, "pass@1, pass@8": {"a": [one, eight]}} | others


def test_the_page_has_the_rows_of_the_file():
    page = (ROOT / "results/speed/README.md").read_text()
    assert speedrun.leaderboard(json.loads(speedrun.MEASURED.read_text())) in page


def test_seeds_are_in_one_line_and_the_goal_is_both():
    """At the goal is who has pass@1 and pass@8; a changed checkout is its commit, another name or
    another machine a line of its own."""
    rows = [row(10.4, 0.5, 0.8), row(11.6, 0.49, 0.9), row(12, 0.9, 0.79, commit="abc")]
    rows += [row(9, 1, 1, who="v"), row(8, 1, 1, machine="n")]
    lines = speedrun.leaderboard(rows).splitlines()[2:]
    assert [line.split(" | ")[2:6] for line in lines] == [
        ["10, 12, 12", "1 of 3", "m", "w"],
        ["9", "1 of 1", "m", "v"],
        ["8", "1 of 1", "n", "w"],
    ]
