r"""References as people write them, tests/tasks/tables/references.tsv: each of them has a right and
a wrong response; what ours and TRL 1.16 say of both, and why where they differ.

Verdicts are two signs, of the right and of the wrong response: 10 is as it should be, and -- is no
verdict. <200B> is the character of this number.
"""

import random
import re

import pytest

from maxrl.tasks import load_task
from maxrl.tasks.answers import read_number
from maxrl.tasks.ready import READY, check_references
from maxrl.tasks.references import answer_in
from maxrl.tasks.verifiers import readable_batch, verify_math_batch, verify_number
from tests.helpers.tables import put
from tests.helpers.verdict_tables import TABLES, boxed

pytest.importorskip("math_verify")


def shown(cell: str) -> str:
    return re.sub("<([0-9A-F]{1,4})>", lambda number: chr(int(number[1], 16)), cell)


LINES = (TABLES / "references.tsv").read_text(encoding="utf-8").splitlines()[1:]
ROWS = [[shown(cell) for cell in line.split("\t")] for line in LINES]
REFERENCES = [row[0] for row in ROWS for _ in range(2)]
RESPONSES = [boxed(response) for row in ROWS for response in row[1:3]]


def signs(verdicts) -> list[str]:
    """Two signs for each row."""
    written = "".join("-" if verdict is None else str(int(verdict)) for verdict in verdicts)
    return [written[i : i + 2] for i in range(0, len(written), 2)]


def differing(found: list[str], column: int) -> list:
    return [(row[0], signs_of) for row, signs_of in zip(ROWS, found) if signs_of != row[column]]


def test_the_table():
    """The right response is right and the wrong one wrong, or there is no verdict."""
    assert len({row[0] for row in ROWS}) == len(ROWS) >= 200
    found = signs(READY["accuracy_reward"](RESPONSES, answer=REFERENCES))
    assert differing(found, 3) == []
    assert {row[3] for row in ROWS} == {"10", "--"}
    assert sum(row[3] == "10" for row in ROWS) >= 0.85 * len(ROWS)


def test_ours_is_never_worse_without_a_reason():
    """A reason is a sentence that no other kind of rows has."""
    worse = [row for row in ROWS if row[4] == "10" and row[3] != "10"]
    kinds = {row[5] for row in ROWS if row[3] == "10"}
    assert [row[0] for row in worse if row[5] in kinds or len(row[5].split()) < 5] == []
    assert sum(row[4] == "10" for row in ROWS) < sum(row[3] == "10" for row in ROWS)


def test_what_trl_says():
    rewards = pytest.importorskip("trl.rewards")
    chats = [[{"role": "assistant", "content": response}] for response in RESPONSES]
    assert differing(signs(rewards.accuracy_reward(chats, REFERENCES)), 4) == []


def test_all_verdicts_are_one(tmp_path):
    """--task math says what accuracy_reward says, and what has no verdict is counted.

    verify_number says the same, or reads no number there, which --task gsm8k counts.
    """
    rows = [{"problem": "p", "answer": row[0]} for row in ROWS]
    task = load_task("math", "train", train=str(put(tmp_path / "train.jsonl", rows)))
    examples = [task[i // 2] for i in range(len(RESPONSES))]
    found = signs(task.verify_all(RESPONSES, examples))
    golds = [task[i].columns["answer"] for i in range(len(ROWS))]
    for row, verdict, known in zip(ROWS, found, readable_batch(golds)):
        assert (verdict == row[3]) if known else (row[3] == "--" and verdict[1] == "0"), row[0]
    with pytest.warns(UserWarning, match=f"{sum(row[3] == '--' for row in ROWS)} of {len(ROWS)}"):
        check_references(task, "train", [task.rewards])
    (tmp_path / "info.json").write_text("{}")
    words = load_task("gsm8k", "train", directory=str(tmp_path))
    numbers = signs(map(verify_number, RESPONSES, REFERENCES))
    assert numbers == signs(words.verify_all(RESPONSES, examples))
    read = [verify_number(boxed(answer_in(row[0])), row[0]) for row in ROWS]
    with pytest.warns(UserWarning, match=f"{read.count(0)} of {len(ROWS)}"):
        check_references(words, "train", [words.rewards])
    for row, verdict, known in zip(ROWS, numbers, read):
        # Two right responses are equal in mathematics but no equal numbers: 1/3 is not 0.333333.
        exact = known and read_number(row[1]) == read_number(answer_in(row[0]))
        assert verdict == (row[3] if exact else "00"), row[0]
    assert sum(read) - sum(verdict == "10" for verdict in numbers) <= 2


def test_reading_twice_is_reading_once():
    for row in ROWS:
        assert answer_in(answer_in(row[0])) == answer_in(row[0])


WORDS = """
dollars eggs marbles books people points cars apples hours cookies students miles pounds cents
tickets boxes days years minutes children pages stickers pencils trees flowers gallons feet cakes
pieces bags cards coins chairs seats shirts shoes horses dogs cats fish cups liters grams inches
meters kilometers weeks months seconds games goals votes rooms houses stamps toys bananas oranges
peaches crayons beads puppies sandwiches tomatoes
"""
UNITS = "N m/s m/s^2 eV J W V A T Pa kPa Hz MHz K mol kg g cm mm nm km L mL s ms h dB J/mol"


def test_numbers_with_words_and_units():
    """In any of six forms; another number is wrong."""
    rng = random.Random(0)
    forms = ("{} {}", "{} {}.", "about {} {}", "{}.0 {}", r"{} \text{{ {}}}", "**{} {}**")
    golds = []
    numbers = []
    for unit in (WORDS + UNITS).split():
        numbers.append(str(rng.randint(2, 999)))
        golds.append(rng.choice(forms).format(numbers[-1], unit))
    right = [boxed(number) for number in numbers]
    wrong = [boxed(str(int(number) + 1)) for number in numbers]
    assert READY["accuracy_reward"](right, answer=golds) == [1] * len(golds), golds
    assert READY["accuracy_reward"](wrong, answer=golds) == [0] * len(golds)
    assert [*map(verify_number, right, golds)] == [1] * len(golds)
    assert [*map(verify_number, wrong, golds)] == [0] * len(golds)
    assert [*map(answer_in, golds)] == numbers


def test_equality_is_relative():
    """Of numbers of any size, decimals or with a power of ten: the same digits are equal, and a
    change of one in a thousand is not."""
    rng = random.Random(0)
    cases = []
    for power in range(-34, 31, 3):
        digits = rng.randrange(1001, 9999, 2) / 1000
        near = f"{digits + 0.001:.3f}"
        gold = rng.choice([rf"{digits}\times 10^{{{power}}}", f"{digits}e{power}"])
        cases.append((rf"{digits} \cdot 10^{{{power}}}", gold, 1))
        cases.append((rf"{near}\times 10^{{{power}}}", gold, 0))
        cases.append((rf"-{digits}\times 10^{{{power}}}", gold, 0))
    boxes, golds, verdicts = zip(*cases)
    assert verify_math_batch([boxed(box) for box in boxes], [*golds]) == [*verdicts]
