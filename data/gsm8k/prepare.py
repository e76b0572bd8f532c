r"""GSM8K:  python -m data.gsm8k.prepare

Writes train.jsonl, test.jsonl and info.json into data/gsm8k, {"problem", "answer", "solution", "source"} a line: the answer
is what follows "####", without thousands commas, the solution what stands before it, without the calculator's <<48/2=24>>.

    python -m data.gsm8k.prepare                                         downloads both, from the authors' repository
    python -m data.gsm8k.prepare --source train.jsonl --test test.jsonl  converts copies, JSONL or parquet
    python -m data.gsm8k.prepare --platinum download                     GSM8K-Platinum, the corrected 1,209 questions, as the
                                                                         test set (or --platinum FILE; the download is parquet)
    python -m data.gsm8k.prepare --check                                 also has every answer in \boxed{} verified

--validation N holds out N training questions, chosen by --seed; the paper trains on all of them.
"""

import random
import re
from dataclasses import replace
from pathlib import Path

from data.common import one_line_errors, parse_arguments, refuse
from data.text_sets import HUB, PARQUET, Source, lines, options, rows_of, write_set

FOLDER = Path(__file__).parent
AUTHORS = (
    "https://raw.githubusercontent.com/openai/grade-school-math/3101c7d5072418e28b9008a6636bde82a006892c/"
    "grade_school_math/data"
)


def split_answer(row: dict) -> dict:
    solution, mark, answer = row["answer"].rpartition("####")
    answer = answer.strip().replace(",", "")
    if not mark or not re.fullmatch(r"-?\d+(\.\d+)?", answer, re.ASCII):
        refuse(
            f"the answer of {row['problem'][:60]!r} does not end in #### and a number but in {row['answer'][-30:]!r}"
        )
    return row | {"answer": answer, "solution": re.sub("<<[^<>]*>>", "", solution).strip()}


GSM8K = Source(
    "gsm8k",
    f"{AUTHORS}/train.jsonl",
    "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    problem="question",
    convert=split_answer,
)
TEST = replace(
    GSM8K,
    name="gsm8k-test",
    url=f"{AUTHORS}/test.jsonl",
    sha256="3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
)
PLATINUM = replace(
    GSM8K,
    name="gsm8k-platinum",
    sha256="",
    url=f"{HUB}/madrylab/gsm8k-platinum/{PARQUET}/main/test/0000.parquet",
)


def check(rows: list[dict]):
    r"""Every answer, written in \boxed{}, must be right, and another one wrong."""
    from maxrl.verifiers import verify_number

    wrong = [
        row
        for row in rows
        if verify_number(f"\\boxed{{{row['answer']}}}", row["answer"]) != 1
        or verify_number(f"\\boxed{{{row['answer']}1}}", row["answer"]) != 0
    ]
    if wrong:
        refuse(
            f"verify_number is wrong about {len(wrong)} of {len(rows)} answers, first {wrong[0]['answer']!r}",
            1,
        )
    print(f"verify_number reads all {len(rows)} answers")


@one_line_errors()
def main(arguments: list[str] | None = None):
    parser = options(__doc__, FOLDER)
    parser.add_argument("--source", type=Path, help="the training set (default: download)")
    parser.add_argument("--test", type=Path, help="the test set (default: download)")
    parser.add_argument("--platinum", help="GSM8K-Platinum as the test set: a file, or `download`")
    parser.add_argument("--validation", type=int, default=0, help="training questions held out (0)")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--check", action="store_true", help="verify all answers")
    args = parse_arguments(parser, arguments)
    if args.platinum and args.test:
        refuse("there is one test set: --test FILE or --platinum FILE")
    train = rows_of(GSM8K, args.source, args.out)
    if not 0 <= args.validation < len(train):
        refuse(
            f"--validation {args.validation} must leave some of the {len(train)} training questions"
        )
    if args.platinum:
        test = rows_of(PLATINUM, None if args.platinum == "download" else args.platinum, args.out)
    else:
        test = rows_of(TEST, args.test, args.out)
    if args.check:
        check(train + test)
    held_out = set(random.Random(args.seed).sample(range(len(train)), args.validation))
    splits = {
        "train": [row for i, row in enumerate(train) if i not in held_out],
        "validation": [train[i] for i in sorted(held_out)],
        "test": test,
    }
    names = {"gsm8k-test": "GSM8K", "gsm8k-platinum": "GSM8K-Platinum"}
    info = {
        "test": names[test[0]["source"]],
        "counts": {split: len(rows) for split, rows in splits.items()},
    }
    write_set(
        args.out,
        info,
        {f"{split}.jsonl": lines(rows) for split, rows in splits.items()},
        args.overwrite,
    )


if __name__ == "__main__":
    main()
