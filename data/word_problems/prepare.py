"""Word problems in GSM8K's format, generated:  python -m data.word_problems.prepare

Writes test.jsonl, validation.jsonl, train.jsonl and info.json into data/word_problems, {"problem",
"answer", "solution", "source"} a line as data/gsm8k/prepare.py does, and beside them tokenizer.json
for a model trained from scratch. The problems have one or two steps and whole numbers from 1 to
--largest; `--task gsm8k --task.directory word_problems` trains on them.

The seed alone decides a stream of problems without repetitions; the first ones are the test set,
then come validation and training, so that the held-out problems are the same whatever --train is.
"""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from data.common import SPLITS, make_parser, one_line_errors, parsed
from data.text_sets import to_jsonl, write_texts
from maxrl.models.tokenizer import CONFIG, SPECIAL, Tokenizer, byte_level
from maxrl.tasks.gsm8k import REQUEST

USUAL = 20
OPTIONS = {
    "train": (20_000, 1, "training problems"),
    "validation": (256, 1, "validation problems"),
    "test": (256, 1, "test problems"),
    "seed": (0, 0, "decides the problems"),
    "largest": (USUAL, USUAL, "largest result"),
}
VERSION = 1  # of the generator: another stream is another version
VOCABULARY = 512  # tokens: two special ones, 256 bytes, merges
DRAWN = 2  # numbers are drawn up to --largest over this,
SMALL = 4  # and those that multiply or divide up to --largest over this

# "names", "things" and "boxes" are the words of the problems, and each of "templates" is a kind of
# problem. The numbers a, b and c are drawn, those in "small" from a smaller range; x is the result
# of the first step and y that of the second; {e} and {f} are the steps written out (12+7=19). {n}
# and {m} are names, {t} things, {g} boxes.
WORDS = json.loads((Path(__file__).parent / "templates.json").read_text())


def compute(step: str, values: dict[str, int], largest: int) -> tuple[int, str] | None:
    """The result of a step such as "x-c", and its text "19-4=15".

    None unless the result is a whole number from 1 to `largest`.
    """
    left, operator, right = tuple(step)
    p = values[left]
    q = values[right] if right in values else int(right)
    if operator == "/" and p % q:
        return None
    result = {"+": p + q, "-": p - q, "*": p * q, "/": p // q}[operator]
    return (result, f"{p}{operator}{q}={result}") if 1 <= result <= largest else None


def draw(rng: random.Random, largest: int) -> dict:
    """A problem: a template and words, then numbers until every step works out."""
    template = rng.choice(WORDS["templates"])
    steps = template["steps"].split()
    n, m = rng.sample(WORDS["names"], 2)
    words = {"n": n, "m": m, "t": rng.choice(WORDS["things"]), "g": rng.choice(WORDS["boxes"])}
    while True:
        values = {
            letter: rng.randint(2, largest // (SMALL if letter in template["small"] else DRAWN))
            for letter in "abc"
        }
        equations: dict[str, str] = {}
        for step, result, equation in zip(steps, "xy", "ef"):
            done = compute(step, values, largest)
            if done is None:
                break
            values[result], equations[equation] = done
        else:
            break
    known = words | values | equations
    return {
        "problem": template["problem"].format_map(known),
        "answer": str(values["xy"[len(steps) - 1]]),
        "solution": template["solution"].format_map(known),
        "source": f"word-problems-{len(steps)}",
    }


def stream(seed: int, largest: int) -> Iterator[dict]:
    """Distinct problems without end."""
    rng = random.Random(seed)
    seen = set()
    while True:
        row = draw(rng, largest)
        if row["problem"] not in seen:
            seen.add(row["problem"])
            yield row


def make_tokenizer(rows: list[dict]) -> Tokenizer:
    """Byte-level BPE trained on what a model reads and writes."""
    backend = byte_level(BPE())
    roles = {role: SPECIAL[role] for role in ("pad_token", "eos_token")}
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(roles.values()),
        show_progress=False,
        initial_alphabet=sorted(ByteLevel.alphabet()),
    )
    texts = (
        f"{row['problem']} {REQUEST}{row['solution']}\n\\boxed{{{row['answer']}}}" for row in rows
    )
    backend.train_from_iterator(texts, trainer)
    # Every byte is a token, but without one transformers would add a token that the model lacks.
    return Tokenizer(backend, CONFIG | roles | {"unk_token": roles["eos_token"]})


@one_line_errors()
def main(words: list[str] | None = None) -> None:
    parser = make_parser("word_problems", __doc__, "data/word_problems")
    args = parsed(parser, words, OPTIONS)
    counts = {split: getattr(args, split) for split in SPLITS}
    problems = stream(args.seed, args.largest)
    splits = {split: list(itertools.islice(problems, count)) for split, count in counts.items()}
    tokenizer = make_tokenizer(splits["train"])
    texts = {f"{split}.jsonl": to_jsonl(rows) for split, rows in splits.items()}
    texts["tokenizer.json"] = tokenizer.backend.to_str(pretty=True)
    texts["tokenizer_config.json"] = json.dumps(tokenizer.config, indent=2) + "\n"
    # Sets of the usual size have had this name before there were others.
    larger = f", results up to {args.largest}" if args.largest > USUAL else ""
    info = {
        "test": f"generated word problems{larger}",
        "seed": args.seed,
        "generator": VERSION,
        "counts": counts,
        "answers": args.largest,
    }
    write_texts(args, "word_problems", info, texts)


if __name__ == "__main__":
    main()
