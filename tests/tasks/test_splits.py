"""Which files of a folder a split reads: none of another split, or it is refused."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from maxrl import MaxRLTrainer
from maxrl.system.errors import UsageError
from maxrl.tasks import load_task
from maxrl.tasks.splits import files_in
from tests.helpers.runs import passed
from tests.helpers.tables import each, write
from tests.repository.pages import PAGES

pytestmark = pytest.mark.usefixtures("in_a_directory_of_its_own")
SPLITS = ("train", "validation", "test")
PAGE = PAGES["data/README.md"].split("### Folders")[1].split("###")[0]
LINES = re.findall(r"(?m)^\| (`.*) \|$", PAGE)


def layout(line):
    """The files of a line of the page's table, what each split reads of them ([]: it is refused),
    and what datasets does instead."""
    files, *read, other = (cell.strip() for cell in re.split(r"\|", line))
    every = re.findall(r"`(.*?)`", files)
    told = [every if cell == "all" else re.findall(r"`(.*?)`", cell) for cell in read]
    assert len(told) == 3
    return every, dict(zip(SPLITS, told)), other


def lay(*files):
    """Put such files into DIR, each with rows that say where they are from."""
    for name in files:
        write(f"DIR/{name}", [{"prompt": name, "answer": "1"}, {"prompt": f"{name} too"}])


def rows(files):
    return sorted(text for name in files for text in (name, f"{name} too"))


def prompts(split, data="DIR", task="prompts"):
    loaded = load_task(task, split, **{split: data})
    return sorted(str(loaded.rows[i]["prompt"]) for i in range(len(loaded)))


@pytest.mark.parametrize("task", ["prompts", "math"])
@pytest.mark.parametrize("line", LINES)
def test_every_layout_of_the_page(line, task):
    """What is read is what the page says, each row once; a refusal names a file that is there."""
    every, read, _ = layout(line)
    lay(*every)
    for split, expected in read.items():
        if expected:
            assert prompts(split, task=task) == rows(expected)
            continue
        with pytest.raises(FileNotFoundError) as caught:
            prompts(split, task=task)
        assert any(name in str(caught.value) for name in every)


@pytest.mark.parametrize("line", LINES)
def test_what_datasets_reads(line):
    """The same files of every split, or none where they are refused here, but for what the last
    column says."""
    datasets = pytest.importorskip("datasets")
    every, read, other = layout(line)
    lay(*every)
    try:
        found = datasets.load_dataset_builder("DIR", cache_dir="cache").config.data_files
    except ValueError:
        found = {}
    folder = Path("DIR").resolve()
    its = {split: sorted(str(Path(f).relative_to(folder)) for f in found.get(split, []))
           for split in SPLITS}  # fmt: skip
    assert (its == {split: sorted(files) for split, files in read.items()}) == (not other)


# Names of files, and the split whose words they have.
WORDS = """
train.jsonl | train
0-training.jsonl | train
TRAIN 2.jsonl | train
my.train.v2.jsonl | train
gsm8k_train-00000-of-00001-a9d.jsonl | train
valid.jsonl | validation
x-val0.jsonl | validation
dev_1.jsonl | validation
2test.jsonl | test
Testing/0.jsonl | test
a/eval-9/b/0.jsonl | test
evaluation.jsonl | test
devset.jsonl | validation
x/myTest+1.jsonl | test
questions[val].jsonl | validation
latest.jsonl |
evaluate.jsonl |
trained.jsonl |
device.jsonl |
value.jsonl |
validated.jsonl |
constrain/tests.jsonl |
tested.jsonl |
medieval.jsonl |
strain/0.jsonl |
conTesté.jsonl |
dataset.jsonl |
testament.jsonl |
GSM8KTrain.jsonl | train
MATHTest.jsonl | test
XVal.jsonl | validation
TRAINset.jsonl | train
holdout.jsonl |
my_held-out.jsonl |
"""


@pytest.mark.parametrize("task", ["prompts", "math"])
@pytest.mark.parametrize("other", ["DIR", "./DIR/", "DIR/../DIR"])
def test_a_folder_without_words_is_of_one_split_alone(task, other, monkeypatch):
    """With words it may be named for all of them."""
    lay("0.jsonl", "1.jsonl")
    assert len(load_task(task, "train", train="DIR", test="else")) == 4
    with monkeypatch.context() as inside:
        inside.chdir("DIR")
        assert len(load_task(task, "train", train=".")) == 4
    for split in ("train", "test"):
        with pytest.raises(FileNotFoundError, match="0.jsonl"):
            load_task(task, split, train="DIR", test=other)
    lay("test.jsonl", "train.jsonl")
    for split in ("train", "test"):
        assert len(load_task(task, split, train="DIR", test=other)) == 2


@each("name, split", WORDS)
def test_a_word_is_no_part_of_another(name, split):
    """Such a file is read for its split alone, beside one whose words are of another."""
    other = "train" if split == "test" else "test"
    lay(name, f"{other}_of_mine.jsonl")
    for asked in SPLITS:
        expected = rows([name]) if asked == split else rows([f"{other}_of_mine.jsonl"])
        if asked in (split, other):
            assert prompts(asked) == expected
        else:
            with pytest.raises(FileNotFoundError):
                prompts(asked)


@each(
    "files, named",
    """
test.jsonl | test.jsonl
train.jsonl train_test.jsonl | train_test.jsonl
train.jsonl test.jsonl train.csv | train.csv
a/train.jsonl b/train.jsonl test.jsonl | b/train.jsonl
""",
)
def test_a_refusal_names_what_is_unclear(files, named):
    lay(*files.split())
    with pytest.raises(FileNotFoundError, match=named):
        prompts("train")


@each(
    "files",
    """
gsmtrain.jsonl gsmtest.jsonl
traingsm.jsonl testgsm.jsonl
trains.jsonl tests.jsonl
TRAINmath.jsonl TESTmath.jsonl
GSM8KTRAIN.jsonl GSM8KVAL.jsonl
mytraining1.jsonl mytraining2.jsonl mydev3.jsonl
math.jsonl mathtest.jsonl
math.jsonl math_tests.jsonl
math.jsonl holdout.jsonl
math.jsonl mathholdout.jsonl
train.jsonl train_heldout.jsonl
""",
)
def test_letters_that_tell_files_apart_are_no_set(files):
    """Only a split has such files, so they are not all trained on."""
    lay(*files.split())
    with pytest.raises(FileNotFoundError, match=files.split()[-1]):
        prompts("train")


@each(
    "files",
    """
latest.jsonl contest.jsonl
strain.jsonl valley.jsonl
math1.jsonl math2.jsonl
device.jsonl evaluate.jsonl
""",
)
def test_words_with_such_letters_are_a_set(files):
    lay(*files.split())
    assert prompts("train") == rows(files.split())


def test_a_file_or_folder_that_is_named_is_read():
    """Whatever its own name is: the names inside a folder decide, not those above it."""
    lay("test/train.jsonl", "test/0/0.jsonl", "train_test.jsonl")
    assert prompts("train", "DIR/train_test.jsonl") == rows(["train_test.jsonl"])
    assert prompts("train", "DIR/test/train.jsonl") == rows(["test/train.jsonl"])
    assert prompts("train", "DIR/test/0") == rows(["test/0/0.jsonl"])
    assert prompts("train", "DIR/test/") == rows(["test/train.jsonl"])


@each(
    "files, read",
    """
questions.jsonl |
en_train.jsonl de_train.jsonl |
train.jsonl test.jsonl | train.jsonl
en/train.jsonl de/test.jsonl | en/train.jsonl
data/train-00000-of-00002.jsonl data/train-00001-of-00002.jsonl | all
""",
)
def test_a_clone_whose_readme_lists_its_files(files, read):
    """Its configurations may split otherwise than names do; the hub's own layout is read."""
    lay(*files.split())
    if not read:
        assert prompts("train") == rows(files.split())
    Path("DIR/README.md").write_text("---\nconfigs:\n- config_name: a\n  data_files: b\n---\n")
    if read:
        assert prompts("train") == rows(files.split() if read == "all" else [read])
    else:
        with pytest.raises(FileNotFoundError, match=files.split()[0]):
            prompts("train")


@each(
    "train, other",
    """
DIR | DIR/b.jsonl
DIR | link
DIR/b.jsonl | DIR
link/b.jsonl | DIR/b.jsonl
DIR | link/a.jsonl
""",
)
def test_no_file_is_of_two_splits_under_two_names(train, other):
    """One name for both says so; neither of them is read before that is seen."""
    lay("a.jsonl", "b.jsonl")
    Path("link").symlink_to("DIR")
    for split in ("train", "validation"):
        with pytest.raises(FileNotFoundError, match=r"DIR/[ab].jsonl"):
            load_task("prompts", split, train=train, validation=other)
    assert len(load_task("prompts", "train", train="DIR/a.jsonl", validation="link/b.jsonl")) == 2
    assert len(load_task("prompts", "train", train="DIR/a.jsonl", validation="DIR/a.jsonl")) == 2


def test_links_are_followed_and_broken_ones_are_named():
    lay("elsewhere/0.jsonl", "there/test.jsonl")
    Path("DIR/there/train").symlink_to("../elsewhere")
    assert prompts("train", "DIR/there") == rows(["elsewhere/0.jsonl"])
    Path("DIR/elsewhere/1.jsonl").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match="there is no file .*1.jsonl"):
        prompts("train", "DIR/there")


def test_no_rows_at_all():
    Path("DIR").mkdir()
    Path("DIR/notes.txt").write_text("train")
    with pytest.raises(FileNotFoundError, match="jsonl"):
        prompts("train")


def test_compressed_files_are_of_their_split():
    """The sentence is about the file of the split, so that no other one is decompressed for it."""
    for split in ("train", "test"):
        lay(f"{split}.jsonl")
        Path(f"DIR/{split}.jsonl").rename(f"DIR/{split}.jsonl.gz")
        Path(f"DIR/{split}.jsonl.gz").write_bytes(b"\x1f\x8b\x08")
        with pytest.raises(UsageError, match=f"{split}.jsonl.gz is compressed"):
            prompts(split)


@pytest.mark.parametrize(
    "data", ["DIR", "DIR/train", "DIR/train/data-00000-of-00002.arrow", "one", "a.arrow"]
)
def test_what_save_to_disk_wrote(data):
    """Refused with a line that makes a file of the split, which is read with all its rows; also a
    file alone, as the cache of datasets holds it."""
    datasets = pytest.importorskip("datasets")
    parts = {
        split: datasets.Dataset.from_list([{"prompt": f"{split} {i}"} for i in range(3)])
        for split in ("train", "test")
    }
    datasets.DatasetDict(parts).save_to_disk("DIR", num_shards={"train": 2, "test": 1})
    parts["train"].save_to_disk("one")
    (file,) = Path("one").glob("*.arrow")
    shutil.copy(file, "a.arrow")
    with pytest.raises(UsageError) as caught:
        prompts("train", data)
    (command,) = re.findall(r"python -c \".*?\"", str(caught.value))
    exec(shlex.split(command)[2], {})
    (made,) = Path().rglob("*.parquet")
    assert str(made) in str(caught.value)
    assert prompts("train", str(made)) == ["train 0", "train 1", "train 2"]


def test_a_file_that_is_called_state_is_read():
    assert prompts("train", write("state.json", [{"prompt": "a"}])) == ["a"]


FEW = "--prompts 2 --rollouts 2 --steps 2 --max-response 2 --max-prompt 9 --eval-every 2 --out run"
NOTED = """
def note(prompts, completions):
    open("seen", "a").write(" ".join(prompts) + " ")
    return [0.0] * len(prompts)
"""


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_no_program_sees_another_split(dice, shell, kind):
    """One folder is named for all three, and the reward notes what it judges: in training and its
    evaluations, in those of eval.py, and the trainer of TRL's names has the same rows."""
    texts = {"train": ["UP", "LEFT"], "val": ["DONE"], "test": ["RIGHT", "DOWN"]}
    for name, words in texts.items():
        write(f"DIR/{name}.{kind}", [{"prompt": word} for word in words])
    Path("rewards.py").write_text(NOTED)
    reward = ("--reward", "rewards.py:note")
    named = [word for split in SPLITS for word in (f"--task.{split}", "DIR")]
    train = ["train.py", "prompts", *named, *reward, "--init", dice, *FEW.split()]
    expected = {
        ("train", "val"): train,
        ("test",): ["eval.py", "run", "--samples", 1, *reward],
        ("val",): ["eval.py", "run", "--samples", 1, *reward, "--split", "validation"],
    }
    for names, command in expected.items():
        Path("seen").unlink(missing_ok=True)
        passed(shell(*command))
        assert {*Path("seen").read_text().split()} == {word for n in names for word in texts[n]}
    rewards = {"reward_funcs": lambda completions: [0.0] * len(completions)}
    trainer = MaxRLTrainer(str(dice), **rewards, train_dataset="DIR", eval_dataset="DIR")
    for task, name in ((trainer.task, "train"), (trainer.validation, "val")):
        assert [task[i].prompt for i in range(len(task))] == texts[name]


SHARDS = """
train-00000-of-00003.parquet
train-00000-of-00001.parquet train-00000-of-00002.parquet train-00001-of-00002.parquet
train-00000-of-00002.parquet train-00001-of-00003.parquet
train-00000-of-00002.parquet train-00000-of-00002-1.parquet
train-00000-of-00002-a9d.parquet train-00000-of-00002-b8c.parquet
train-00001-of-00002.parquet train-00002-of-00002.parquet
"""


@each("names", SHARDS)
def test_shards_that_are_missing_or_doubled(names, tmp_path):
    """A part of a set is not trained on as if it were the whole."""
    for name in names.split():
        (tmp_path / name).touch()
    (tmp_path / "test-00000-of-00001.parquet").touch()
    with pytest.raises(FileNotFoundError, match="whose names say"):
        files_in(tmp_path, "train")
    assert [file.name for file in files_in(tmp_path, "test")] == ["test-00000-of-00001.parquet"]
