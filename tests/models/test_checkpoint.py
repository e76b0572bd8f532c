"""Checkpoints: directories that transformers reads, and that appear complete or not at all."""

import json
import os

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from trained import TOKENIZER, trained
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from maxrl import checkpoint
from maxrl.build import make_optimizer
from maxrl.config import Config
from maxrl.io.tokenizer import Tokenizer
from maxrl.models import from_config
from maxrl.recipes import maze17
from maxrl.tasks.maze import ID

TEXT = (
    "<bos> GRID_START WALL PATH GOAL NEWLINE UP DOWN LEFT RIGHT START GRID_END "
    "PATH_START DONE <eos>"
)
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
NORM = "model.norm.weight"
RESNET = {"model_type": "torchvision_resnet", "num_labels": 3, "block": "basic", "depths": [1, 1]}


def save(path, model, optimizer=None):
    state = {"step": 2}
    checkpoint.save(
        path, model, TOKENIZER, [7, 2], recipe={"recipe": "x"}, optimizer=optimizer, state=state
    )
    return path


def meant(path):
    """Of a checkpoint that is changed by hand."""
    (path / checkpoint.CHECKSUMS).unlink(missing_ok=True)


def edit(file, **changes):
    """Change keys of a JSON file."""
    meant(file.parent)
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def rewrite(file, changes):
    """Change tensors of a safetensors file; None removes one."""
    meant(file.parent)
    tensors = load_file(file) | changes
    save_file({name: t.clone() for name, t in tensors.items() if t is not None}, file)


@pytest.mark.parametrize("tied", [True, False])
def test_round_trip(tmp_path, tied):
    """Model, tokenizer and stop tokens come back, and the next step is the same to the bit."""
    model, optimizer = trained(tie_word_embeddings=tied)
    save(tmp_path / "a", model, optimizer)
    again, tokenizer, stop = checkpoint.load_model(tmp_path / "a")
    assert again.config == model.config and stop == [2, 7]
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied
    assert tokenizer.encode(TEXT) == TOKENIZER.encode(TEXT)
    restored = torch.optim.AdamW(again.parameters(), lr=0.01)
    checkpoint.load_optimizer(tmp_path / "a", again, restored)
    for _ in range(2):
        for (name, p), q in zip(model.state_dict().items(), again.state_dict().values()):
            assert torch.equal(p, q), name
        for m, o in ((model, optimizer), (again, restored)):
            o.zero_grad()
            m.lm_head(m(torch.arange(6)[None, None])).square().sum().backward()
            o.step()


def test_the_optimizer_is_plain_adam():
    """The fused kernel computes what the plain one does."""
    cfg = Config(lr=0.01, betas=(0.8, 0.9), weight_decay=0.1)
    models = [tiny.model(torch.float64) for _ in range(2)]
    options = {"lr": cfg.lr, "betas": cfg.betas, "weight_decay": cfg.weight_decay}
    optimizers = (
        torch.optim.AdamW(models[0].parameters(), **options),
        make_optimizer(cfg, models[1]),
    )
    for step in range(4):
        for model, optimizer in zip(models, optimizers):
            generator = torch.Generator().manual_seed(step)
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=generator).double()
            optimizer.step()
    for plain, ours in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(ours, plain, atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_reads_ours(tmp_path, tied):
    model = tiny.model(torch.float32, tie_word_embeddings=tied, rope_theta=5e3)
    save(tmp_path / "a", model)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    tokens = torch.tensor([TOKENIZER.encode(TEXT)])
    with torch.no_grad():
        ours = model.lm_head(model(tokens[:, None]))[:, 0]
        torch.testing.assert_close(ours, theirs(tokens).logits, atol=1e-5, rtol=1e-5)
    assert sorted(theirs.generation_config.eos_token_id) == [2, 7]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "a")
    assert tokenizer(TEXT)["input_ids"] == TOKENIZER.encode(TEXT)
    roles = tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id
    assert roles == (0, 1, 2) and tokenizer.unk_token_id == 3


def test_ids_of_the_vocabulary():
    """They are those of the published maze checkpoint, so that its directory loads as it is."""
    assert TOKENIZER.encode(TEXT) == [1, 4, 9, 8, 10, 12, 13, 14, 15, 16, 11, 5, 6, 7, 2]
    assert TOKENIZER.decode(TOKENIZER.encode(TEXT)) == TEXT
    assert len(ID) == 32 == maze17().model["vocab_size"] and TOKENIZER.id("RESERVED_13") == 31
    assert TOKENIZER.encode("UP sideways") == [13, 3]
    with pytest.raises(ValueError, match="no token 'sideways'"):
        TOKENIZER.id("sideways")


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o077, 0o600)])
def test_files(tmp_path, umask, mode):
    """Every file has the mode that the umask leaves; only the weights are in the index of vLLM."""
    model, optimizer = trained()
    before = os.umask(umask)
    try:
        path = save(tmp_path / "a", model, optimizer)
    finally:
        os.umask(before)
    weights = load_file(path / "model.safetensors")
    assert EMBEDDING in weights and HEAD not in weights, "a tied head is held once"
    index = json.loads((path / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == dict.fromkeys(weights, "model.safetensors")
    hub = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    hub |= {"model.safetensors", "model.safetensors.index.json"}
    ours = {"recipe.json", "optimizer.safetensors", "state.json", "checksums.json"}
    assert {file.name for file in path.iterdir()} == hub | ours
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {mode}


@pytest.mark.parametrize(
    "broken", ["maxrl.checkpoint.save_file", "os.rename", "maxrl.io.files.flush"]
)
def test_an_interrupted_save_leaves_no_checkpoint(tmp_path, monkeypatch, broken):
    """Wherever it is killed, the newest checkpoint is the old one and the next save succeeds."""
    model, optimizer = trained()
    save(tmp_path / "step-1", model, optimizer)
    checkpoint.set_latest(tmp_path, "step-1")

    def kill(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(broken, kill)
        save(tmp_path / "step-2", model, optimizer)
    assert not (tmp_path / "step-2").exists()
    assert checkpoint.find(tmp_path) == tmp_path / "step-1"
    (tmp_path / "step-2.incomplete").mkdir()
    (tmp_path / "step-2.incomplete" / "rubbish.safetensors").write_bytes(b"?")
    save(tmp_path / "step-2", model, optimizer)
    assert not (tmp_path / "step-2.incomplete").exists()
    assert not (tmp_path / "step-2" / "rubbish.safetensors").exists()
    checkpoint.load_model(tmp_path / "step-2")


def test_nothing_is_overwritten(tmp_path):
    path = save(tmp_path / "a", tiny.model(torch.float32, seed=0))
    before = (path / "model.safetensors").read_bytes()
    with pytest.raises(OSError, match="not empty"):
        save(path, tiny.model(torch.float32, seed=1))
    assert (path / "model.safetensors").read_bytes() == before


def test_find(tmp_path):
    """A run directory stands for its newest checkpoint, and never for one outside of it."""
    run = tmp_path / "run"
    model = tiny.model(torch.float32)
    save(tmp_path / "outside", model)
    save(run / "step-1", model)
    checkpoint.set_latest(run, "step-1")
    assert checkpoint.find(run) == checkpoint.find(run / "step-1") == run / "step-1"
    checkpoint.set_latest(run, "../outside")
    for nothing in (tmp_path, tmp_path / "elsewhere", run):
        with pytest.raises(FileNotFoundError, match="neither a checkpoint .* nor a run directory"):
            checkpoint.find(nothing)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    "changes, words",
    [
        ({NORM: None}, f"Missing key.*{NORM}"),
        ({"extra": torch.ones(2)}, "Unexpected key.*extra"),
        ({NORM: torch.ones(5)}, f"size mismatch for {NORM}"),
        ({NORM: torch.ones(32).int()}, f"{NORM}.*floating point"),
    ],
)
def test_weights_must_fit(tmp_path, changes, words, tied):
    """A missing, superfluous or wrong tensor is an error that names it."""
    path = save(tmp_path / "a", tiny.model(torch.float32, tie_word_embeddings=tied))
    rewrite(path / "model.safetensors", changes)
    with pytest.raises(ValueError, match=f"{path} cannot be loaded: .*{words}") as caught:
        checkpoint.load_model(path)
    assert "\n" not in str(caught.value)


def test_both_names_of_a_tied_head(tmp_path):
    """The file may have either or both, as for transformers, where the embedding counts."""
    model = tiny.model(torch.float32)
    file = save(tmp_path / "a", model) / "model.safetensors"
    tensor = load_file(file)[EMBEDDING]
    for changes in ({}, {HEAD: tensor + 1}):
        rewrite(file, changes)
        again = checkpoint.load_model(tmp_path / "a")[0]
        assert again.lm_head.weight is again.model.embed_tokens.weight
        assert torch.equal(again.lm_head.weight, model.lm_head.weight)
    rewrite(file, {EMBEDDING: None, HEAD: tensor})
    assert torch.equal(checkpoint.load_model(tmp_path / "a")[0].lm_head.weight, tensor)


def test_rotary_tables_of_old_checkpoints(tmp_path):
    path = save(tmp_path / "a", tiny.model(torch.float32))
    table = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    rewrite(path / "model.safetensors", table)
    checkpoint.load_model(path)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"vocab_size": 10**12}, "size mismatch"),
        ({"vocab_size": 10**400}, "cannot be loaded"),
        ({"vocab_size": "8"}, "cannot be loaded"),
        ({"intermediate_size": 10**12}, "size mismatch"),
        ({"head_dim": 2**40}, "size mismatch"),
        ({"num_hidden_layers": 3}, "Missing key.*model.layers.2"),
        ({"num_hidden_layers": 10**30}, "cannot be loaded"),
        ({"num_attention_heads": 0}, "cannot be loaded"),
        ({"max_position_embeddings": [1]}, "cannot be loaded"),
        ({"rms_norm_eps": [1]}, "cannot be loaded"),
        ({"rope_theta": "a"}, "cannot be loaded"),
        ({"eos_token_id": ["a"]}, "eos_token_id"),
        ({"eos_token_id": 10**30}, "eos_token_id"),
    ],
)
def test_a_model_larger_than_its_files_gets_no_memory(tmp_path, changes, words):
    """Terabytes that config.json asks for are compared with the files before they are taken."""
    path = save(tmp_path / "a", tiny.model(torch.float32))
    edit(path / "config.json", **changes)
    (path / "generation_config.json").unlink()
    with pytest.raises(ValueError, match=words):
        checkpoint.load_model(path)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"num_labels": 10**12}, "size mismatch"),
        ({"width": 2**20}, "size mismatch"),
        ({"depths": [10**30]}, "cannot be loaded"),
    ],
)
def test_a_classifier_larger_than_its_files_gets_no_memory(tmp_path, changes, words):
    checkpoint.save(tmp_path / "a", from_config(RESNET | {"width": 4}))
    edit(tmp_path / "a" / "config.json", **changes)
    with pytest.raises(ValueError, match=words):
        checkpoint.load_model(tmp_path / "a")


def test_what_is_no_safetensors_file(tmp_path):
    """A header that claims more than the file holds is damage; a pickle is not read."""
    path = save(tmp_path / "a", tiny.model(torch.float32))
    meant(path)
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"{file} is damaged"):
        checkpoint.load_model(path)
    file.unlink()
    torch.save({}, path / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match=str(file)):
        checkpoint.load_model(path)


def test_shards(tmp_path):
    """Those of the index are read, in this directory alone, and a missing one is noticed. What is
    left over from another model is none of them."""
    path = save(tmp_path / "a", tiny.model(torch.float32))
    whole = load_file(path / "model.safetensors")
    save_file({name: value + 1 for name, value in whole.items()}, path / "model_old.safetensors")
    expected = checkpoint.load_model(path)[0].state_dict()
    assert all(expected[name].equal(whole[name]) for name in whole)
    meant(path)
    (path / "model.safetensors").rename(tmp_path / "whole.safetensors")
    index = {"weight_map": dict.fromkeys(whole, "../whole.safetensors")}
    checkpoint.write_json(path / "model.safetensors.index.json", index)
    with pytest.raises(FileNotFoundError, match=f"{path}/model.safetensors"):
        checkpoint.load_model(path)
    for number, names in enumerate((list(whole)[::2], list(whole)[1::2]), 1):
        shard = f"model-0000{number}-of-00002.safetensors"
        save_file({name: whole[name] for name in names}, path / shard)
        index["weight_map"] |= dict.fromkeys(names, shard)
    checkpoint.write_json(path / "model.safetensors.index.json", index)
    left = {name: torch.zeros_like(value) for name, value in whole.items()}
    save_file(left, path / "model-00003-of-00003.safetensors")
    found = checkpoint.load_model(path)[0].state_dict()
    assert all(found[name].equal(expected[name]) for name in expected)
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=f"{path}/model.safetensors.index.json"):
        checkpoint.load_model(path)


@pytest.mark.parametrize(
    "own, config, stop",
    [
        (None, [2, 7], [2, 7]),
        ({}, 5, [5]),
        ({"eos_token_id": [7, 2, 9]}, 2, [7, 2, 9]),
        ({"eos_token_id": None}, 2, [2]),
        ({}, None, []),
    ],
)
def test_all_end_tokens(tmp_path, own, config, stop):
    """generation_config.json comes first: config.json of an instruct model lacks <|im_end|>."""
    path = save(tmp_path / "a", tiny.model(torch.float32))
    (path / "generation_config.json").unlink()
    if own is not None:
        checkpoint.write_json(path / "generation_config.json", own)
    edit(path / "config.json", eos_token_id=config)
    assert checkpoint.load_model(path)[2] == stop


def test_padding_and_truncation_are_not_ours(tmp_path):
    """A tokenizer.json that pads to 10^9 tokens and cuts after 5 does neither to a prompt."""
    path = save(tmp_path / "a", tiny.model(torch.float32))
    padding = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
    cut = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
    edit(path / "tokenizer.json", padding=padding, truncation=cut)
    assert len(Tokenizer.load(path).encode("WALL " * 9)) == 9


def foreign(path):
    """A directory with more in it than we use, as they are on the hub."""
    save(path, tiny.model(torch.float32))
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


def test_what_came_with_a_checkpoint_leaves_with_it(tmp_path):
    """Tokenizer files keep their bytes and JSON its unknown keys, over two generations."""
    before = foreign(tmp_path / "a")
    names = {file.name for file in before.iterdir()}
    for generation in ("b", "c"):
        model, tokenizer, stop = checkpoint.load_model(before)
        assert sorted(stop) == [2, 7]
        checkpoint.save(tmp_path / generation, model, tokenizer, stop, recipe={})
        for name in names - {"model.safetensors", "recipe.json", "checksums.json"}:
            old, new = ((folder / name).read_text() for folder in (before, tmp_path / generation))
            if name in ("config.json", "generation_config.json", "tokenizer_config.json"):
                change = {"torch_dtype": "float32"} if name == "config.json" else {}
                if name != "tokenizer_config.json":
                    change["eos_token_id"] = [2, 7]
                assert json.loads(new) == json.loads(old) | change, name
            else:
                assert new == old, name
        before = tmp_path / generation
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "c").generation_config
    assert theirs.top_k == 20 and theirs.eos_token_id == [2, 7]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "c")
    assert tokenizer.chat_template == "{{ messages }}"


def test_other_end_tokens_are_written(tmp_path):
    """The end tokens of the task stand in both files, and the loaded model's are unchanged."""
    model, tokenizer, _ = checkpoint.load_model(foreign(tmp_path / "a"))
    checkpoint.save(tmp_path / "b", model, tokenizer, [9, 4])
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "b" / name).read_text())["eos_token_id"] == [4, 9]
    assert checkpoint.load_model(tmp_path / "b")[2] == [4, 9]
    assert model.generation_config["eos_token_id"] == [7, 2]
    assert model.config.hf["eos_token_id"] == 2
