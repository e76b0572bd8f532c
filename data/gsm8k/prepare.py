"""GSM8K:  python -m data.gsm8k.prepare

Writes train.jsonl, test.jsonl and info.json into data/gsm8k, {"problem", "answer", "solution",
"source"} a line. The answer is what follows "####", without thousands commas; the solution is what
stands before it, without the calculator's <<48/2=24>>.

    python -m data.gsm8k.prepare                       downloads both, from the authors' repository
    python -m data.gsm8k.prepare --source train.jsonl --test test.jsonl
                                                       converts copies (JSON, CSV, parquet)
    python -m data.gsm8k.prepare --platinum            GSM8K-Platinum, 1,209 corrected questions,
                                                       as the test set

--validation N holds out the last N training questions, to choose options by; the paper trains on
all, and without a validation set evaluations in training use the test set.
"""

import re
from dataclasses import replace

from data.common import make_parser, one_line_errors, parsed
from data.text_sets import HERE, HUB, PARQUET, Source, read_source, to_jsonl, write_texts
from maxrl.system.errors import UsageError
from maxrl.tasks.answers import DECIMAL

AUTHORS = (
    "https://raw.githubusercontent.com/openai/grade-school-math/"
    "3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math/data"
)


def split_answer(row: dict) -> dict:
    """Part GSM8K's answers into solution and number."""
    solution, mark, answer = row["answer"].rpartition("####")
    answer = answer.strip().removesuffix(".")
    if not mark or not DECIMAL.fullmatch(answer.removeprefix("-")):
        raise UsageError(f"the answer of {row['problem'][:60]!r} does not end in #### and a number")
    answer = answer.replace(",", "")
    return row | {"answer": answer, "solution": re.sub("<<[^<>]*>>", "", solution).strip()}


TRAIN = Source(
    "gsm8k",
    f"{AUTHORS}/train.jsonl",
    "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
    problem="question",
    convert=split_answer,
)
TEST = replace(
    TRAIN,
    name="gsm8k-test",
    url=f"{AUTHORS}/test.jsonl",
    sha256="3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
)
PLATINUM = replace(
    TRAIN,
    name="gsm8k-platinum",
    sha256="",
    url=f"{HUB}/madrylab/gsm8k-platinum/{PARQUET}/main/test/0000.parquet",
)


@one_line_errors()
def main(words: list[str] | None = None) -> None:
    parser = make_parser("gsm8k", __doc__, "data/gsm8k")
    parser.add_argument("--source", help="the training set (default: download)")
    parser.add_argument("--test", help="the test set (default: download)")
    parser.add_argument("--platinum", action="store_true", help="the test set is GSM8K-Platinum")
    parser.add_argument("--validation", type=int, default=0, help="training questions held out")
    args = parsed(parser, words)
    folder = args.out or HERE / "gsm8k"
    train = read_source(TRAIN, args.source, folder)
    test = read_source(PLATINUM if args.platinum else TEST, args.test, folder)
    kept = len(train) - args.validation
    if not 0 < kept <= len(train):
        raise UsageError(f"--validation {args.validation} must be from 0 to {len(train) - 1}")
    splits = {"train": train[:kept], "validation": train[kept:], "test": test}
    info = {
        "test": "GSM8K-Platinum" if args.platinum else "GSM8K",
        "counts": {split: len(rows) for split, rows in splits.items()},
    }
    # The task takes the test set for validation where there is no file.
    texts = {f"{split}.jsonl": to_jsonl(rows) for split, rows in splits.items() if rows}
    write_texts(args, "gsm8k", info, texts)


if __name__ == "__main__":
    main()
