"""A small chat model and rows of sums, for the tests of MaxRLTrainer."""

import pytest
import torch

from maxrl.models import checkpoint
from maxrl.models.checkpoint import Checkpoint
from maxrl.models.tokenizer import Tokenizer
from tests.helpers import tiny

TEMPLATE = (
    "{% for m in messages %}<user> {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SHORT = dict(
    per_device_train_batch_size=16,
    num_generations=4,
    max_completion_length=6,
    max_steps=4,
    learning_rate=1e-2,
    logging_steps=1,
    bf16=False,
    use_cpu=True,
)


@pytest.fixture(scope="module")
def tiny_chat(tmp_path_factory):
    """The directory of a small Llama whose tokenizer, of transformers, has a chat template."""
    transformers = pytest.importorskip("transformers")
    words = ("<pad>", "<eos>", "<unk>", "<user>", "<assistant>", "+", "=", *map(str, range(10)))
    tokenizer = Tokenizer.from_vocabulary(words)
    tokenizer.config["chat_template"] = TEMPLATE
    sizes = dict(model_type="llama", vocab_size=len(words), max_position_embeddings=1024)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    checkpoint.save(folder, Checkpoint(tiny.model(torch.float32, **sizes), tokenizer, [1]))
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    (folder / "checksums.json").unlink()
    return str(folder)


def sums(chat=True):
    """Rows: which digit is the sum?"""
    rows = []
    for a in range(4):
        for b in range(4):
            asked = f"{a} + {b} ="
            prompt = [{"role": "user", "content": asked}] if chat else asked
            rows.append({"prompt": prompt, "solution": str(a + b)})
    return rows


def text(completion):
    return completion if isinstance(completion, str) else completion[0]["content"]


def digit(completions, **columns):
    return [float(text(c)[:1].isdigit()) for c in completions]


def sometimes(completions, **columns):
    return [None if i % 3 == 0 else 1.0 for i in range(len(completions))]


def logits(model):
    tokens = torch.arange(3, 15)[None]
    with torch.no_grad():
        return model.eval()(tokens).logits


def entries(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]
