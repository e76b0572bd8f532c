"""The sets of competition mathematics as one table; data/NAME/prepare.py runs main(NAME)."""

from data.common import make_parser, one_line_errors, parsed
from data.text_sets import HERE, HUB, PARQUET, Source, read_source, to_jsonl, write_texts
from maxrl.system.errors import UsageError


def drop_zeros(row: dict) -> dict:
    """AIME's answers are whole numbers from 0 to 999, some of them printed as 033."""
    if not row["answer"].isdecimal():
        raise UsageError(f"the answer {row['answer']!r} of {row['source']} is not a whole number")
    return row | {"answer": str(int(row["answer"]))}


# {set: {file: source}}: data/SET/FILE.jsonl is made from the source.
SETS = {
    "polaris": {
        "train": Source(
            "polaris",
            f"{HUB}/POLARIS-Project/Polaris-Dataset-53K/{PARQUET}/default/train/0000.parquet",
            keep=("difficulty",),
        )
    },
    "aime": {
        "2024": Source(
            "aime2024",
            f"{HUB}/HuggingFaceH4/aime_2024/resolve/2fe88a2f1091d5048c0f36abc874fb997b3dd99a/"
            "data/train-00000-of-00001.parquet",
            "26139847601a5037c237d5928b195e7260ca8074cf4f264b794af42847f79ccf",
            convert=drop_zeros,
        ),
        "2025": Source(
            "aime2025",
            f"{HUB}/math-ai/aime25/resolve/563bb8404243c5f09de6ec262f2db674fe5bce9b/test.jsonl",
            "b4e273c02d3e7fe1b74b59eae768fc8230bfb0f79539890cb56f4361caac0331",
            convert=drop_zeros,
        ),
    },
    "beyondaime": {
        "test": Source(
            "beyondaime", f"{HUB}/ByteDance-Seed/BeyondAIME/{PARQUET}/default/test/0000.parquet"
        )
    },
    "math500": {
        "test": Source(
            "math500",
            f"{HUB}/HuggingFaceH4/MATH-500/resolve/6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be/"
            "test.jsonl",
            "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132",
            keep=("subject", "level"),
        )
    },
    "minerva": {
        "test": Source(
            "minerva",
            f"{HUB}/math-ai/minervamath/{PARQUET}/default/test/0000.parquet",
            problem="question",
        )
    },
}


@one_line_errors()
def main(name: str, description: str | None, words: list[str] | None = None) -> None:
    """Make the set of that name, from downloads or from the copies that --source names."""
    sources = SETS[name]
    parser = make_parser(name, description, f"data/{name}")
    parser.add_argument(
        "--source",
        nargs=len(sources),
        metavar="FILE",
        default=[None] * len(sources),
        help=f"use copies (JSONL, JSON, CSV or parquet): {', '.join(sources)}, in this order",
    )
    args = parsed(parser, words)
    folder = args.out or HERE / name
    texts = {}
    for (split, source), file in zip(sources.items(), args.source):
        texts[f"{split}.jsonl"] = to_jsonl(read_source(source, file, folder))
    write_texts(args, name, {}, texts)
