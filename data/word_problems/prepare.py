"""Word problems in GSM8K's format, generated:  python -m data.word_problems.prepare

Writes test.jsonl, validation.jsonl, train.jsonl and info.json into data/word_problems, {"problem", "answer", "solution",
"source"} a line as data/gsm8k/prepare.py does, and beside them tokenizer.json for a model trained from scratch. Problems
of one and two steps with whole numbers from 1 to 20; `--task gsm8k --task.directory word_problems` trains on them.

The problems are one stream that the seed alone decides, without repetitions: first those of the test set, then
validation, then training, so that the held-out problems are the same whatever --train is.
"""

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from data.common import SPLITS, add_options, check_limits, one_line_errors, parse_arguments
from data.text_sets import lines, options, write_set
from maxrl.io.tokenizer import SPECIAL, Tokenizer
from maxrl.tasks.gsm8k import REQUEST

FOLDER = Path(__file__).parent
USUAL = {"train": 20_000, "validation": 256, "test": 256, "seed": 0}
ABOUT = {
    "train": "training problems",
    "validation": "held out",
    "test": "held out",
    "seed": "decides the problems",
}
MOST = 1_000_000  # problems of a split
VERSION = 1  # of the generator: another stream is another version
VOCABULARY = 512  # tokens: two special ones, 256 bytes, merges
LARGEST = 20  # of the results
LARGEST_DRAWN = 10  # of the numbers drawn
LARGEST_SMALL = 5  # of those that multiply

NAMES = (
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Henry",
    "Iris",
    "Jack",
    "Karen",
    "Leo",
    "Mia",
    "Noah",
    "Olga",
    "Paul",
)
THINGS = (
    "apples",
    "books",
    "cards",
    "coins",
    "cookies",
    "eggs",
    "flowers",
    "marbles",
    "pencils",
    "shells",
    "stamps",
    "toys",
)
BOXES = ("bags", "baskets", "boxes", "drawers", "jars", "rows")


@dataclass(frozen=True)
class Template:
    """A kind of problem: a, b, c are drawn, x is the result of the first step, y of the second, {e} and {f} those
    written out (12+7=19). Letters of `small` are drawn small: they multiply or divide."""

    problem: str
    steps: str  # one or two, a blank in between
    solution: str
    small: str = ""


TEMPLATES = (
    Template(
        "{n} has {a} {t}. {m} gives {n} {b} more {t}. How many {t} does {n} have now?",
        "a+b",
        "{n} has {e} {t}.",
    ),
    Template(
        "There are {a} {t} on the table and {b} {t} on the floor. How many {t} are there in total?",
        "a+b",
        "There are {e} {t}.",
    ),
    Template(
        "{n} has {a} {t} and loses {b} of them. How many {t} are left?",
        "a-b",
        "There are {e} {t} left.",
    ),
    Template(
        "{n} has {a} {t} and {m} has {b} {t}. How many more {t} does {n} have than {m}?",
        "a-b",
        "{n} has {e} more {t}.",
    ),
    Template(
        "{n} has {a} {g} with {b} {t} each. How many {t} does {n} have?",
        "a*b",
        "{n} has {e} {t}.",
        "ab",
    ),
    Template(
        "{n} puts {a} {t} into {b} {g}, the same number into each. How many {t} does each of the {g} hold?",
        "a/b",
        "Each holds {e} {t}.",
        "b",
    ),
    Template(
        "{n} had {a} {t}, found {b} {t} and then gave {c} {t} to {m}. How many {t} does {n} have now?",
        "a+b x-c",
        "{n} had {e} {t} and then {f} {t}.",
    ),
    Template(
        "{n} had {a} {t}. {n} gave {b} {t} to {m} and then bought {c} {t}. How many {t} does {n} have now?",
        "a-b x+c",
        "{n} had {e} {t} and then {f} {t}.",
    ),
    Template(
        "{n} fills {a} {g} with {b} {t} each and has {c} {t} left over. How many {t} are there in total?",
        "a*b x+c",
        "The {g} hold {e} {t}. There are {f} {t}.",
        "ab",
    ),
    Template(
        "{n} has {a} {g} with {b} {t} each and sells {c} {t}. How many {t} are left?",
        "a*b x-c",
        "The {g} hold {e} {t}. There are {f} {t} left.",
        "ab",
    ),
    Template(
        "{n} has {a} {t}. {m} has {b} more {t} than {n}. How many {t} do they have together?",
        "a+b a+x",
        "{m} has {e} {t}. Together they have {f} {t}.",
    ),
    Template(
        "{n} has {a} {t}. {m} has {b} times as many. How many {t} do they have together?",
        "a*b a+x",
        "{m} has {e} {t}. Together they have {f} {t}.",
        "b",
    ),
    Template(
        "{n} and {m} find {a} and {b} {t} and share them equally. How many {t} does each of them get?",
        "a+b x/2",
        "They find {e} {t}. Each gets {f} {t}.",
    ),
)


def compute(step: str, values: dict[str, int]) -> tuple[int, str] | None:
    """The result of a step such as "x-c" and its text, "19-4=15"; None unless it is a whole number in 1..LARGEST."""
    left, operator, right = step
    p = values[left]
    q = values[right] if right in values else int(right)
    if operator == "/" and p % q:
        return None
    result = {"+": p + q, "-": p - q, "*": p * q, "/": p // q}[operator]
    return (result, f"{p}{operator}{q}={result}") if 1 <= result <= LARGEST else None


def draw(rng: random.Random) -> dict:
    """A problem: a template and words, then numbers until every step works out."""
    template = rng.choice(TEMPLATES)
    steps = template.steps.split()
    words = dict(zip("nm", rng.sample(NAMES, 2))) | {
        "t": rng.choice(THINGS),
        "g": rng.choice(BOXES),
    }
    while True:
        values = {
            letter: rng.randint(2, LARGEST_SMALL if letter in template.small else LARGEST_DRAWN)
            for letter in "abc"
        }
        equations = {}
        for step, result, equation in zip(steps, "xy", "ef"):
            if (done := compute(step, values)) is None:
                break
            values[result], equations[equation] = done
        else:
            break
    known = words | values | equations
    return {
        "problem": template.problem.format_map(known),
        "answer": str(values["xy"[len(steps) - 1]]),
        "solution": template.solution.format_map(known),
        "source": f"word-problems-{len(steps)}",
    }


def stream(seed: int) -> Iterator[dict]:
    """Distinct problems without end."""
    rng = random.Random(seed)
    seen = set()
    while True:
        row = draw(rng)
        if row["problem"] not in seen:
            seen.add(row["problem"])
            yield row


def make_tokenizer(rows: list[dict]) -> Tokenizer:
    """Byte-level BPE of what a model reads and writes: every text comes back as it was, every digit is a token."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    roles = {role: SPECIAL[role] for role in ("pad_token", "eos_token")}
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(roles.values()),
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    texts = (
        f"{row['problem']} {REQUEST}{row['solution']}\n\\boxed{{{row['answer']}}}" for row in rows
    )
    backend.train_from_iterator(texts, trainer)
    return Tokenizer(
        backend,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **roles,
        },
    )


@one_line_errors()
def main(arguments: list[str] | None = None):
    parser = options(__doc__, FOLDER)
    add_options(parser, USUAL, ABOUT)
    args = parse_arguments(parser, arguments)
    check_limits(args, dict.fromkeys(SPLITS, 1) | {"seed": 0}, **dict.fromkeys(SPLITS, MOST))
    counts = {split: getattr(args, split) for split in SPLITS}
    problems = stream(args.seed)
    splits = {split: list(itertools.islice(problems, count)) for split, count in counts.items()}
    tokenizer = make_tokenizer(splits["train"])
    texts = {f"{split}.jsonl": lines(rows) for split, rows in splits.items()}
    texts["tokenizer.json"] = tokenizer.backend.to_str(pretty=True)
    texts["tokenizer_config.json"] = json.dumps(tokenizer.config, indent=2) + "\n"
    info = {
        "test": "generated word problems",
        "seed": args.seed,
        "generator": VERSION,
        "counts": counts,
    }
    write_set(args.out, info, texts, args.overwrite)


if __name__ == "__main__":
    main()
