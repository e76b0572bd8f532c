"""Checkpoints: directories that transformers reads and writes, that appear whole or not at all."""

import json

import pytest
import tiny
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config

from maxrl import checkpoint
from maxrl.recipes import maze17
from maxrl.tasks.maze import ID, VOCABULARY
from maxrl.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_vocabulary(VOCABULARY)
TEXT = "<bos> GRID_START WALL PATH GOAL NEWLINE UP DOWN LEFT RIGHT START GRID_END PATH_START DONE <eos>"


def trained(seed=0, **changes):
    """A model and an AdamW that has state."""
    model = tiny.model(torch.float32, seed=seed, **changes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.arange(6)[None, None]).square().sum().backward()
        model.lm_head.weight.grad = torch.randn_like(model.lm_head.weight)
        optimizer.step()
    return model, optimizer


def save(path, model, optimizer=None):
    checkpoint.save(path, model, TOKENIZER, [7, 2], recipe={"recipe": "x"}, optimizer=optimizer, state={"step": 2})


@pytest.mark.parametrize("tied", [True, False])
def test_round_trip(tmp_path, tied):
    model, optimizer = trained(tie_word_embeddings=tied)
    save(tmp_path / "a", model, optimizer)
    again, tokenizer, stop = checkpoint.load_model(tmp_path / "a")
    assert again.config == model.config and stop == [2, 7]
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied
    for (name, p), q in zip(model.state_dict().items(), again.state_dict().values()):
        assert torch.equal(p, q), name
    assert tokenizer.encode(TEXT) == TOKENIZER.encode(TEXT)
    restored = torch.optim.AdamW(again.parameters(), lr=0.01)
    checkpoint.load_optimizer(tmp_path / "a", again, restored)
    for (name, p), q in zip(model.named_parameters(), again.parameters()):
        assert set(restored.state[q]) == set(optimizer.state[p]) == {"step", "exp_avg", "exp_avg_sq"}, name
        for key, value in optimizer.state[p].items():
            assert torch.equal(restored.state[q][key], value), (name, key)


def test_the_next_step_after_a_round_trip_is_the_same(tmp_path):
    """Bit for bit: Adam's step count is part of its bias correction."""
    model, optimizer = trained()
    save(tmp_path / "a", model, optimizer)
    again, _, _ = checkpoint.load_model(tmp_path / "a")
    restored = torch.optim.AdamW(again.parameters(), lr=0.01)
    checkpoint.load_optimizer(tmp_path / "a", again, restored)
    for m, o in ((model, optimizer), (again, restored)):
        o.zero_grad()
        m.lm_head(m(torch.arange(6)[None, None])).square().sum().backward()
        o.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters()))


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_reads_ours(tmp_path, tied):
    model = tiny.model(torch.float32, tie_word_embeddings=tied, rope_theta=5e3)
    save(tmp_path / "a", model)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    tokens = torch.tensor([TOKENIZER.encode(TEXT)])
    with torch.no_grad():
        torch.testing.assert_close(
            model.lm_head(model(tokens[:, None]))[:, 0], theirs(tokens).logits, atol=1e-5, rtol=1e-5
        )
    assert sorted(theirs.generation_config.eos_token_id) == [2, 7]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "a")
    assert tokenizer(TEXT)["input_ids"] == TOKENIZER.encode(TEXT)
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (
        0,
        1,
        2,
        3,
    )


def test_a_name_that_transformers_does_not_believe(tmp_path):
    """transformers 5 distrusts the tokenizer_class of every qwen2 checkpoint: AutoTokenizer takes Qwen2's byte-level
    rules and reads a maze as one unknown word, in the published maze checkpoint as in ours. The class that
    tokenizer_config.json names reads it (above). Should this test fail one day, AutoTokenizer has become right."""
    save(tmp_path / "a", tiny.model(torch.float32))
    assert (
        json.loads((tmp_path / "a" / "tokenizer_config.json").read_text())["tokenizer_class"]
        == "PreTrainedTokenizerFast"
    )
    assert AutoTokenizer.from_pretrained(tmp_path / "a")(TEXT)["input_ids"] != TOKENIZER.encode(TEXT)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype, shards", [(torch.float32, "5GB"), (torch.bfloat16, "5GB"), (torch.float32, "12KB")])
def test_ours_reads_transformers(tmp_path, tied, dtype, shards):
    """As transformers 5 writes it: rope_parameters, dtype, several shards with an index, its own tokenizer files."""
    torch.manual_seed(0)
    sizes = {k: v for k, v in tiny.SIZES.items() if k not in ("rope_theta", "model_type")} | {
        "tie_word_embeddings": tied
    }
    theirs = AutoModelForCausalLM.from_config(
        Qwen2Config(
            **sizes, rope_parameters={"rope_theta": 5e3, "rope_type": "default"}, eos_token_id=2, initializer_range=0.2
        )
    ).to(dtype)
    theirs.save_pretrained(tmp_path / "a", max_shard_size=shards)
    assert (len(list((tmp_path / "a").glob("*.safetensors"))) > 1) == (shards == "12KB")
    PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.backend, eos_token="<eos>").save_pretrained(tmp_path / "a")
    model, tokenizer, stop = checkpoint.load_model(tmp_path / "a")
    assert model.config.rope_theta == 5e3 and stop == [2] and model.lm_head.weight.dtype == torch.float32
    tokens = torch.tensor([tokenizer.encode(TEXT)])
    assert tokens.tolist() == [TOKENIZER.encode(TEXT)]
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "a", dtype=torch.float32)  # not .float(): the rotary
        expected = theirs(tokens).logits  # frequencies of a model made in bfloat16 stay as coarse as they were
        torch.testing.assert_close(model.lm_head(model(tokens[:, None]))[:, 0], expected, atol=1e-5, rtol=1e-5)


def test_ids_of_the_vocabulary():
    """Those of the published maze checkpoint, so that its directory loads as it is."""
    assert TOKENIZER.encode(TEXT) == [1, 4, 9, 8, 10, 12, 13, 14, 15, 16, 11, 5, 6, 7, 2]
    assert TOKENIZER.decode(TOKENIZER.encode(TEXT)) == TEXT
    assert len(ID) == 32 == maze17().model["vocab_size"] and TOKENIZER.id("RESERVED_13") == 31
    assert TOKENIZER.encode("UP sideways") == [13, 3]
    with pytest.raises(ValueError, match="no token 'sideways': this checkpoint belongs to another task"):
        TOKENIZER.id("sideways")


def test_only_safetensors(tmp_path):
    """Pickles run code when they are loaded: none is written, and a directory that holds only one is refused."""
    model, optimizer = trained()
    save(tmp_path / "a", model, optimizer)
    files = {f.name for f in (tmp_path / "a").iterdir()}
    assert files == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "recipe.json",
        "optimizer.safetensors",
        "state.json",
    }
    assert "lm_head.weight" not in load_file(tmp_path / "a" / "model.safetensors"), "a tied head is held once"
    (tmp_path / "a" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "a" / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="holds no .*safetensors"):
        checkpoint.load_model(tmp_path / "a")


@pytest.mark.parametrize(
    "broken",
    ["maxrl.checkpoint.save_file", "os.rename", "maxrl.checkpoint._flush", "maxrl.checkpoint.optimizer_tensors"],
)
def test_an_interrupted_save_leaves_no_checkpoint(tmp_path, monkeypatch, broken):
    """Killed anywhere before the rename there is nothing under the name, the run's newest checkpoint is the old one,
    and what is left over does not disturb the next save. A half-written one was once resumed from: silently, with
    the weights of one step and the optimizer of another."""
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
    (tmp_path / "step-2.incomplete" / "rubbish.safetensors").write_bytes(b"?")
    save(tmp_path / "step-2", model, optimizer)
    assert not (tmp_path / "step-2.incomplete").exists() and not (tmp_path / "step-2" / "rubbish.safetensors").exists()
    checkpoint.load_model(tmp_path / "step-2")


def test_nothing_is_overwritten(tmp_path):
    save(tmp_path / "a", tiny.model(torch.float32, seed=0))
    before = (tmp_path / "a" / "model.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="nothing is overwritten"):
        save(tmp_path / "a", tiny.model(torch.float32, seed=1))
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == before


def test_find(tmp_path):
    save(tmp_path / "run" / "step-1", tiny.model(torch.float32))
    checkpoint.set_latest(tmp_path / "run", "step-1")
    assert (
        checkpoint.find(tmp_path / "run") == checkpoint.find(tmp_path / "run" / "step-1") == tmp_path / "run" / "step-1"
    )
    for nothing in (tmp_path, tmp_path / "elsewhere"):
        with pytest.raises(FileNotFoundError, match="neither a checkpoint .* nor a run directory"):
            checkpoint.find(nothing)


def test_weights_must_fit(tmp_path):
    """strict=True: a missing or superfluous tensor is no warning."""
    save(tmp_path / "a", tiny.model(torch.float32))
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    (tmp_path / "a" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ValueError, match="model.layers.2"):
        checkpoint.load_model(tmp_path / "a")
