"""Runs and tests as data: a study names its commands, one string for many of them."""

import itertools

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


def in_order(runs: dict[str, list[str]], folder: str) -> list[dict]:
    """The runs that others of them start from, then those others."""
    starts = {dict(options(words)).get("--init") for words in runs.values()}
    first = {name: words for name, words in runs.items() if f"{folder}/{name}" in starts}
    rest = {name: words for name, words in runs.items() if name not in first}
    return [first, rest]


def options(words: list[str]) -> list[tuple[str, str]]:
    """The pairs of an option and its value."""
    return [pair for pair in itertools.pairwise(words) if pair[0].startswith("--")]
