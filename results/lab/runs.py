"""Runs and tests as data: a study names its commands, one string for many of them."""

import itertools
import re
import shlex

from results.lab.data import kept

SAVING = "--save-every-minutes 3"


def product(name: str, command: str, **values) -> dict[str, list[str]]:
    """Return {name of a run: its words} for every combination of the values.

    Both texts have a field for each value: "seed{seed}/base", "train.py maze9_laptop_sft --seed
    {seed}". A value that is a tuple has its parts as {value[0]}.
    """
    made = {}
    for combination in itertools.product(*values.values()):
        chosen = dict(zip(values, combination))
        made[name.format(**chosen)] = f"{command} {SAVING}".format(**chosen).split()
    return made


def evaluation(options: str, models: dict[str, str], **values) -> list[str]:
    """Return the words of eval.py over {row: run below runs/}, each for every combination."""
    words = ["eval.py"]
    for row, model in models.items():
        words += product(f"{row}=runs/{model}", "", **values)
    return [*words, *options.split()]


def recorded(study: str, what: str = "runs") -> dict[str, list[str]]:
    """{name: its words} of the runs or tests of a study that has ended, as they were kept."""
    return {
        name: shlex.split(re.split(" --(?:out|json) ", one["command"])[0])[1:]
        for name, one in kept(study, what).items()
    }


def starting_from(words: list[str]) -> str:
    """The model that a run starts from; an empty text if it is none."""
    return dict(options(words)).get("--init", "")


def with_bases(chosen: dict, runs: dict, folder: str) -> dict:
    """The chosen ones of the study's runs, and those that they start from."""
    found = dict(chosen)
    waiting = list(chosen.values())
    while waiting:
        base = starting_from(waiting.pop()).removeprefix(f"{folder}/")
        if base in runs and base not in found:
            found[base] = runs[base]
            waiting.append(runs[base])
    return found


def in_order(runs: dict[str, list[str]], folder: str) -> list[dict]:
    """Parts of the runs: each run is in a part after that of the run that it starts from."""
    parts = []
    waiting = dict(runs)
    while waiting:
        part = {}
        for name, words in waiting.items():
            if starting_from(words).removeprefix(f"{folder}/") not in waiting:
                part[name] = words
        waiting = {name: words for name, words in waiting.items() if name not in part}
        parts.append(part)
    return parts


def options(words: list[str]) -> list[tuple[str, str]]:
    """The pairs of an option and its value."""
    return [pair for pair in itertools.pairwise(words) if pair[0].startswith("--")]
