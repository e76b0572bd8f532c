"""Checkpoints: directories that transformers reads, and that appear complete or not at all."""

import json
import math
import os
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from maxrl.learning.config import Config
from maxrl.learning.optimizer import make_optimizer
from maxrl.models import checkpoint, from_config
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.lora import add_lora
from maxrl.models.tokenizer import Tokenizer
from maxrl.run.recipes import maze17
from maxrl.system.files import read_json
from maxrl.tasks.maze import ID
from tests.helpers import tiny
from tests.helpers.tables import cells, each
from tests.helpers.tensors import close
from tests.helpers.trained import TOKENIZER, trained

TEXT = (
    "<bos> GRID_START WALL PATH GOAL NEWLINE UP DOWN LEFT RIGHT START GRID_END "
    "PATH_START DONE <eos>"
)
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
RESNET = {"model_type": "torchvision_resnet", "num_labels": 3, "block": "basic", "depths": [1]}


def save(path, model=None, optimizer=None, **options):
    model = model or tiny.model(torch.float32)
    given = {"recipe": {"recipe": "x"}, "state": {"step": 2}} | options
    checkpoint.save(path, Checkpoint(model, TOKENIZER, [7, 2]), optimizer=optimizer, **given)
    return path


@pytest.fixture
def path(tmp_path):
    """A checkpoint of tiny.model()."""
    return save(tmp_path / "a")


def edit(file, **changes):
    """Change keys of a JSON file, as what is meant."""
    (file.parent / checkpoint.CHECKSUMS).unlink(missing_ok=True)
    file.write_text(json.dumps(read_json(file) | changes))


def rewrite(path, changes):
    """Change tensors of a checkpoint, as what is meant; None removes one."""
    (path / checkpoint.CHECKSUMS).unlink(missing_ok=True)
    file = path / "model.safetensors"
    tensors = load_file(file) | changes
    save_file({name: t.clone() for name, t in tensors.items() if t is not None}, file)


def same_weights(one, other):
    close(one.state_dict(), other.state_dict(), 0)


def test_the_optimizer_has_the_options_of_the_recipe():
    options = {"lr": 0.01, "betas": (0.8, 0.9), "weight_decay": 0.1}
    optimizer = make_optimizer(Config(**options), tiny.model())
    assert isinstance(optimizer, torch.optim.AdamW)
    assert options.items() <= optimizer.defaults.items()


def test_transformers_reads_the_rest(path):
    """End tokens and tokenizer; for the weights see test_families.py."""
    theirs = AutoModelForCausalLM.from_pretrained(path)
    assert sorted(theirs.generation_config.eos_token_id) == [2, 7]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    assert tokenizer(TEXT)["input_ids"] == TOKENIZER.encode(TEXT)
    roles = [getattr(tokenizer, f"{role}_token_id") for role in ("pad", "bos", "eos", "unk")]
    assert roles == [0, 1, 2, 3]


def test_ids_of_the_vocabulary():
    """They are those of the published maze checkpoint, so that its directory loads as it is."""
    assert TOKENIZER.encode(TEXT) == [1, 4, 9, 8, 10, 12, 13, 14, 15, 16, 11, 5, 6, 7, 2]
    assert TOKENIZER.decode(TOKENIZER.encode(TEXT)) == TEXT
    assert len(ID) == maze17().model["vocab_size"] == 32
    assert [TOKENIZER.id(word) for word in ("\n", "RESERVED_0", "RESERVED_13")] == [17, 18, 31]
    assert TOKENIZER.encode("UP sideways") == [13, 3]
    with pytest.raises(ValueError, match="no token 'sideways'"):
        TOKENIZER.id("sideways")


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o077, 0o600)])
def test_files(tmp_path, umask, mode):
    """Every file has the mode that the umask leaves; only the weights are in the index of vLLM."""
    before = os.umask(umask)
    try:
        path = save(tmp_path / "a", *trained())
    finally:
        os.umask(before)
    weights = load_file(path / "model.safetensors")
    assert EMBEDDING in weights
    assert HEAD not in weights, "a tied head is held once"
    index = read_json(path / "model.safetensors.index.json")
    assert index["weight_map"] == dict.fromkeys(weights, "model.safetensors")
    hub = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    hub |= {"model.safetensors", "model.safetensors.index.json"}
    ours = {"recipe.json", "optimizer.safetensors", "state.json", "checksums.json"}
    assert {file.name for file in path.iterdir()} == hub | ours
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {mode}


def test_what_an_interrupted_save_has_left_is_not_saved(tmp_path):
    """tests/faults kills saves wherever they are."""
    left = tmp_path / "a.incomplete"
    left.mkdir()
    (left / "rubbish.safetensors").write_bytes(b"?")
    path = save(tmp_path / "a")
    assert not left.exists()
    assert not (path / "rubbish.safetensors").exists()


def test_nothing_is_overwritten(path):
    before = (path / "model.safetensors").read_bytes()
    with pytest.raises(OSError, match="exists: save to another path"):
        save(path, tiny.model(torch.float32, seed=1))
    assert (path / "model.safetensors").read_bytes() == before


def test_find(path, tmp_path):
    """A run directory stands for its newest checkpoint, and never for one outside of it."""
    run = tmp_path / "run"
    save(run / "step-1")
    checkpoint.set_latest(run, "step-1")
    assert checkpoint.find(run) == run / "step-1"
    assert checkpoint.find(run / "step-1") == run / "step-1"
    save(tmp_path / "outer" / "step-2")
    outer = tmp_path / "outer" / "step-2"
    checkpoint.save(outer / "run" / "step-1", Checkpoint(tiny.model(torch.float32), TOKENIZER, [7]))
    for name in ("..", "step-1/..", "step-1/../..", ".", str(path), f"../../../{path.name}", ""):
        checkpoint.set_latest(outer / "run", name)
        with pytest.raises(FileNotFoundError):
            checkpoint.find(outer / "run")
    checkpoint.set_latest(run, f"../{path.name}")
    for nothing in (tmp_path, tmp_path / "elsewhere", run):
        with pytest.raises(FileNotFoundError, match="neither a checkpoint .* nor a run directory"):
            checkpoint.find(nothing)


CONFIGS = """
{"vocab_size": 1000000000000} | size mismatch
{"num_hidden_layers": 3} | Missing key.*model.layers.2
{"num_hidden_layers": 1000000000000000000000000000000} | cannot be loaded
{"vocab_size": HUGE} | cannot be loaded
{"vocab_size": "8"} | cannot be loaded
{"num_attention_heads": 0} | cannot be loaded
{"rms_norm_eps": [1]} | cannot be loaded
{"rope_theta": "a"} | cannot be loaded
{"eos_token_id": ["a"]} | eos_token_id
""".replace("HUGE", "1" + "0" * 400)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "tensors, config, words",
    [
        ({NORM: None}, {}, f"Missing key.*{NORM}"),
        ({"extra": torch.ones(2)}, {}, "Unexpected key.*extra"),
        ({NORM: torch.ones(5)}, {}, f"size mismatch for {NORM}"),
        ({NORM: torch.ones(32).int()}, {}, f"{NORM}.*floating point"),
        *[({NORM: torch.full((32,), huge)}, {}, f"{NORM}") for huge in (1e30, -3e38, math.nan)],
        ({NORM: torch.full((32,), 1e300, dtype=torch.float64)}, {}, f"{NORM}"),
        # Terabytes that config.json asks for are compared with the files before they are taken.
        *[({}, json.loads(config), words) for config, words in cells(CONFIGS)],
    ],
)
def test_what_does_not_fit_is_an_error_that_names_it(tmp_path, tensors, config, words, tied):
    path = save(tmp_path / "a", tiny.model(torch.float32, tie_word_embeddings=tied))
    (path / "generation_config.json").unlink()
    rewrite(path, tensors)
    edit(path / "config.json", **config)
    with pytest.raises(ValueError, match=f"{path} .*{words}") as caught:
        checkpoint.load(path)
    assert "\n" not in str(caught.value)


def test_a_classifier_larger_than_its_files_gets_no_memory(tmp_path):
    checkpoint.save(tmp_path / "a", Checkpoint(from_config(RESNET)))
    edit(tmp_path / "a" / "config.json", num_labels=10**12)
    with pytest.raises(ValueError, match="size mismatch"):
        checkpoint.load(tmp_path / "a")


# The head, the embedding, and whether they are one: what is added to all elements or to one alone,
# or a bfloat16 of the same numbers, or of rounded ones.
HEADS = """
none 0 tied
0 none tied
0 0 tied
1 0 two
1e-6 0 two
0 1 two
0 -1 two
one 0 two
bfloat16 bfloat16 tied
bfloat16 0 two
"""


@each("line", HEADS)
def test_both_names_of_a_tied_head(path, line):
    """The file may have either or both; two different matrices stay two, as for transformers, and
    are written so."""
    tensor = load_file(path / "model.safetensors")[EMBEDDING]
    one = tensor.clone()
    one[3, 5] += 1
    named = {"none": None, "one": one, "bfloat16": tensor.bfloat16()}
    *given, kind = line.split()
    tied = kind == "tied"
    head, embedding = (named[how] if how in named else tensor + float(how) for how in given)
    file = {HEAD: head, EMBEDDING: embedding}
    rewrite(path, file)
    loaded = checkpoint.load(path)
    model = loaded.model
    checkpoint.save(path.parent / "b", loaded)
    for found in (model, checkpoint.load(path.parent / "b").model):
        assert (found.lm_head.weight is found.model.embed_tokens.weight) == tied
        assert found.config.tie_word_embeddings == tied
        for name, expected in file.items():
            if expected is not None:
                close(found.get_parameter(name), expected.float(), 0)
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
    close(model.state_dict(), dict(theirs), 0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1j, 1e6])
@pytest.mark.parametrize("adapter", [False, True])
def test_weights_that_are_no_numbers(path, value, adapter):
    """One element of a model, or of an adapter, is enough; 1e6 in float16 is infinite."""
    file = path / "model.safetensors"
    if adapter:
        whole = checkpoint.load(path)
        add_lora(whole.model, 2, 2, base=str(file.parent))
        path = path.parent / "adapter"
        checkpoint.save_into(path, whole)
        file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    name = list(tensors)[-2]
    dtype = {1j: torch.complex64, 1e6: torch.float16}.get(value, torch.float32)
    tensors[name] = tensors[name].to(dtype)
    tensors[name].view(-1)[-1] = value
    (path / checkpoint.CHECKSUMS).unlink()
    save_file(tensors, file)
    with pytest.raises(ValueError, match=name) as caught:
        checkpoint.load(path)
    assert "\n" not in str(caught.value)


def test_rotary_tables_of_old_checkpoints(path):
    rewrite(path, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    checkpoint.load(path)


def test_what_is_no_safetensors_file(path):
    """A header that claims more than the file holds is damage; a pickle is not read."""
    (path / checkpoint.CHECKSUMS).unlink()
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"{file} is damaged"):
        checkpoint.load(path)
    file.unlink()
    (path / "model.safetensors.index.json").unlink()
    for name in ("notes.md", "pytorch_model.bin", "consolidated.00.pth", "model.pt"):
        torch.save({}, path / name)
        with pytest.raises(FileNotFoundError, match=f"{file} .*pickle"):
            checkpoint.load(path)


def test_shards(path):
    """Those of the index are read, in this directory alone, and a missing one is noticed. What is
    left over from another model is none of them."""
    model = checkpoint.load(path).model
    whole = load_file(path / "model.safetensors")
    save_file({name: value + 1 for name, value in whole.items()}, path / "model_old.safetensors")
    same_weights(checkpoint.load(path).model, model)
    (path / checkpoint.CHECKSUMS).unlink()
    (path / "model.safetensors").rename(path.parent / "whole.safetensors")
    index = path / "model.safetensors.index.json"

    def missing():
        with pytest.raises(FileNotFoundError, match=f"{path}/model.safetensors"):
            checkpoint.load(path)

    edit(index, weight_map=dict.fromkeys(whole, "../whole.safetensors"))
    missing()
    shards = {}
    for number in (0, 1):
        names = list(whole)[number::2]
        shards |= dict.fromkeys(names, f"model-{number}.safetensors")
        save_file({name: whole[name] for name in names}, path / f"model-{number}.safetensors")
    edit(index, weight_map=shards)
    same_weights(checkpoint.load(path).model, model)
    (path / "model-1.safetensors").unlink()
    missing()


# generation_config.json if there is one; what config.json and the tokenizer have; all of them.
ENDS = """
null | [2, 7] | "<eos>" | [2, 7]
{} | 5 | "<eos>" | [2, 5]
{} | 1000000000000000000000000000000 | "<eos>" | [2]
{"eos_token_id": [7, -1]} | 32000 | "<eos>" | [2, 7]
{"eos_token_id": [7, 2, 9]} | 4 | "UP" | [2, 4, 7, 9, 13]
{"eos_token_id": null} | 2 | null | [2]
{"eos_token_id": 2} | 2 | "<eos>" | [2]
{} | null | {"content": "DONE"} | [7]
null | null | "DONE" | [7]
{} | null | null | []
"""


@each("row", ENDS)
def test_all_end_tokens(path, row):
    """Those of both configs and of the tokenizer, each once, as TRL and vLLM have it: a model of
    chats may have its end of a message in any one of them. An adapter's tokenizer counts too."""
    own, config, token, stop = map(json.loads, row)
    (path / "generation_config.json").unlink()
    if own is not None:
        checkpoint.write_json(path / "generation_config.json", own)
    edit(path / "config.json", eos_token_id=config)
    edit(path / "tokenizer_config.json", eos_token=token)
    whole = checkpoint.load(path)
    assert sorted(whole.stop_tokens) == stop
    add_lora(whole.model, 2, 2, base=str(path))
    whole.tokenizer.config["eos_token"] = "WALL"
    checkpoint.save_into(path.parent / "adapter", whole)
    adapted = checkpoint.load(path.parent / "adapter")
    assert sorted(adapted.stop_tokens) == sorted({*stop, ID["WALL"]})


def test_padding_and_truncation_are_not_ours(path):
    """A tokenizer.json that pads to 10^9 tokens and cuts after 5 does neither to a prompt."""
    padding = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
    cut = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
    edit(path / "tokenizer.json", padding=padding, truncation=cut)
    assert len(Tokenizer.load(path).encode("WALL " * 9)) == 9


@pytest.fixture
def foreign(path):
    """A directory with more in it than we use, as they are on the hub."""
    unknown = {"use_cache": True, "transformers.js_config": {"a": [1]}}
    edit(path / "config.json", eos_token_id=2, torch_dtype="bfloat16", **unknown)
    edit(path / "tokenizer_config.json", chat_template="{{ 'é' }}", model_max_length=8192)
    edit(path / "tokenizer.json")
    generation = {"eos_token_id": [7, 2], "pad_token_id": 2, "top_k": 20, "new": "é"}
    checkpoint.write_json(path / "generation_config.json", generation)
    for name in ("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"):
        (path / name).write_text("{}\n")
    (path / "chat_template.jinja").write_text("{{ messages }}")
    return path


def test_what_came_with_a_checkpoint_leaves_with_it(foreign, tmp_path):
    """Tokenizer files keep their bytes and JSON its unknown keys, over two generations."""
    changed = {
        "config.json": {"torch_dtype": "float32", "eos_token_id": [2, 7]},
        "generation_config.json": {"eos_token_id": [2, 7]},
        "tokenizer_config.json": {},
    }
    written = {"model.safetensors", "recipe.json"}
    before = foreign
    for generation in ("b", "c"):
        whole = checkpoint.load(before)
        assert sorted(whole.stop_tokens) == [2, 7]
        checkpoint.save(tmp_path / generation, whole)
        before = tmp_path / generation
    for file in foreign.iterdir():
        new = before / file.name
        if file.name in changed:
            assert read_json(new) == read_json(file) | changed[file.name], file.name
        elif file.name not in written:
            assert new.read_text() == file.read_text(), file.name
    theirs = AutoModelForCausalLM.from_pretrained(before).generation_config
    assert theirs.top_k == 20
    assert theirs.eos_token_id == [2, 7]
    assert PreTrainedTokenizerFast.from_pretrained(before).chat_template == "{{ messages }}"


def test_other_end_tokens_are_written(foreign, tmp_path):
    """The end tokens of the task stand in both files, and the loaded model's are unchanged."""
    whole = checkpoint.load(foreign)
    checkpoint.save(tmp_path / "b", replace(whole, stop_tokens=[9, 4]))
    for name in ("config.json", "generation_config.json"):
        assert read_json(tmp_path / "b" / name)["eos_token_id"] == [4, 9]
    # The tokenizer's own is joined to them.
    assert sorted(checkpoint.load(tmp_path / "b").stop_tokens) == [2, 4, 9]
    assert whole.generation_config["eos_token_id"] == [7, 2]
    assert whole.model.config.hf["eos_token_id"] == 2
