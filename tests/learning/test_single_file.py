"""maxrl/single_file.py, a language model in one file, computes what the package computes."""

import json

import pytest
import torch

from maxrl import single_file
from maxrl.advantages import ADVANTAGES
from maxrl.models import checkpoint
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.tokenizer import Tokenizer
from maxrl.tasks.maze import VOCABULARY
from maxrl.tasks.verifiers import verify_number
from tests.helpers import tiny
from tests.helpers.tensors import close

PROMPTS = [[5, 9, 4], [8], [1, 3]]


@pytest.fixture
def folder(tmp_path):
    """A Llama of random weights as a Hugging Face directory."""
    tokenizer = Tokenizer.from_vocabulary([*VOCABULARY[:-1], single_file.END])
    llama = tiny.model(torch.float32, model_type="llama", rms_norm_eps=1e-5, rope_theta=1e5)
    checkpoint.save(tmp_path / "model", Checkpoint(llama, tokenizer, [31]))
    return tmp_path / "model"


@pytest.fixture
def models(folder):
    """Its weights in the file's model and in the package's, in float64."""
    return single_file.load(folder)[0].double(), checkpoint.load(folder).model.double()


def test_sampler(models, monkeypatch):
    """The tokens are those of whole rows without a cache, from prompts of three lengths."""
    monkeypatch.setattr(single_file, "LIMIT", 9)
    torch.manual_seed(0)
    tokens, mask, ended = single_file.sample(models[0], PROMPTS, 4, 7)
    assert 0 < ended.sum() < 12
    torch.manual_seed(0)
    responses = [[] for _ in ended]
    for _ in range(9):
        rows = [PROMPTS[i // 4] + response for i, response in enumerate(responses)]
        logits = torch.cat([tiny.row_logits(models[1], row, [0]) for row in rows])
        for response, token in zip(responses, torch.multinomial(logits.softmax(-1), 1)):
            response += token.tolist()
    for i, response in enumerate(responses):
        end = response.index(7) + 1 if ended[i] else 9
        assert tokens[i][mask[i]].tolist() == response[:end]


@pytest.mark.parametrize("method", ["maxrl", "grpo", "rloo"])
def test_gradient(models, method, monkeypatch):
    """Of stored rollouts with every number of successes, in forwards of two groups."""
    monkeypatch.setattr(single_file, "ROWS", 8)
    stored = tiny.rollouts((9, 5, 1, 7, 4))
    rewards = torch.ones(5, 4).double().tril(-1)
    expected = tiny.gradient(tiny.policy(models[1]), stored, ADVANTAGES[method](rewards))
    mask = torch.arange(6) < stored.lengths.unsqueeze(2)  # (5, 4, 6)
    batch = stored.tokens, mask, single_file.advantages(rewards, method)
    optimizer = torch.optim.SGD(models[0].parameters(), lr=0)
    norm = single_file.update(models[0], optimizer, [p.tolist() for p in stored.prompts], *batch)
    close(tiny.grads(models[0]) * max(1, norm), expected, 1e-6)  # clip_grad_norm_ adds 1e-6


def test_verify():
    boxes = ("18", "$1,200.", "-3.50", "018", "12,34", "1 8", "", "x", r"3} \boxed{18")
    for text in ["18", "", *(rf"\boxed{{3}} so \boxed{{{box}}}." for box in boxes), r"\boxed{18"]:
        for answer in ("18", "1200", "-3.5", "1,234", "", "x"):
            assert single_file.verify(text, answer) == verify_number(text, answer), text


def test_a_response_that_was_cut_is_wrong(models, folder, monkeypatch):
    """Also with the right answer in a box: the model had not finished."""
    tokenizer = single_file.load(folder)[1]
    monkeypatch.setattr(single_file, "N", 8)
    monkeypatch.setattr(single_file, "LIMIT", 9)
    monkeypatch.setattr(single_file, "END", VOCABULARY[7])
    monkeypatch.setattr(single_file, "verify", lambda text, answer: 1.0)
    torch.manual_seed(0)
    problems = [(prompt, None, "5") for prompt in PROMPTS]
    _, responses, mask, rewards = single_file.rollouts(models[0], tokenizer, problems)
    ended = ((responses == 7) & mask).any(2)
    assert 0 < ended.sum() < ended.numel()
    assert torch.equal(rewards, ended.to(rewards))


def test_a_run(folder, monkeypatch):
    """What it writes is read by the package, and has learned; a wrong path is one sentence, as is
    a model of another kind."""
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    for name, size in {"P": 2, "WARMUP": 1, "STEPS": 2}.items():
        monkeypatch.setattr(single_file, name, size)
    monkeypatch.setattr(torch, "set_default_device", lambda device: None)  # it would last
    monkeypatch.setattr(single_file, "verify", lambda response, answer: float(len(response) % 2))
    row = json.dumps({"problem": "UP", "solution": "DOWN", "answer": "5"})
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text(f"{row}\n" * 4)
    words = ["--data", str(folder), "--out", str(folder / "out"), "--model"]
    single_file.main([*words, str(folder)])
    read = [checkpoint.load(folder / f"out/{name}") for name in ("base", "trained")]
    assert all(whole.tokenizer.chat_template for whole in read)
    assert not torch.equal(*[whole.model.lm_head.weight for whole in read])
    with pytest.raises(SystemExit, match="out exists"):
        single_file.main([*words, str(folder)])
    with pytest.raises(SystemExit, match="nowhere/config.json is missing"):
        single_file.main(["--model", "nowhere"])
    config = json.loads((folder / "config.json").read_text())
    for other in ({"hidden_act": "gelu"}, {"rope_type": "llama3"}, {"model_type": "qwen2"}):
        (folder / "config.json").write_text(json.dumps(config | other))
        with pytest.raises(SystemExit, match="no plain Llama"):
            single_file.load(folder)
