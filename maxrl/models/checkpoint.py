"""Reads and writes checkpoints: Hugging Face directories, with the state of training next to them.

    RUN/recipe.json      the resolved recipe and the command
    RUN/metrics.jsonl    one object per step
    RUN/samples.jsonl    what the model writes, now and then
    RUN/latest           the name of the newest checkpoint
    RUN/step-000160/     a checkpoint:
        config.json, generation_config.json, model.safetensors with its index, tokenizer.json,
        tokenizer_config.json and further tokenizer files of the checkpoint that training began
        from, for transformers and vLLM; a classifier has config.json and model.safetensors, with
        torchvision's names
        recipe.json, optimizer.safetensors, state.json, metrics.jsonl so far, for --resume
        checksums.json, of all other files

With --lora-rank a checkpoint is a PEFT adapter instead (adapter_config.json,
adapter_model.safetensors and the tokenizer, without the base model) and the files for --resume.

transformers reads the tokenizer of a vocabulary of words, such as the maze's, with
PreTrainedTokenizerFast. AutoTokenizer of transformers 5 takes every qwen2 or qwen3 model's for
Qwen2's own, and every LlamaTokenizer for Llama's; here it is what tokenizer.json says.
"""

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from maxrl.models import Uninitialised, from_config
from maxrl.models.hub_files import MODEL_FILES, NEEDS, digest, end_tokens, find, weight_files
from maxrl.models.lora import from_adapter, has_lora, lora_state
from maxrl.models.tokenizer import CARRIED, Tokenizer
from maxrl.models.transformer import Transformer
from maxrl.system import sharding
from maxrl.system.errors import UsageError, one_line
from maxrl.system.files import (
    CHECKSUMS,
    DataError,
    first_problem,
    flush,
    publish,
    read_json,
    regular,
    write_json,
    write_text,
)


@dataclass
class Checkpoint:
    """A model, and what its files say besides the weights.

    model              in float32; Any, because sampling and training ask for one kind
    tokenizer          None for a classifier
    stop_tokens        ids that end a response, none for a classifier
    generation_config  the content of generation_config.json, written back on saving
    digest             of the files that it was loaded from
    needs              digests for recipe.json: the "base" of an adapter, a KL penalty's "reference"
    """

    model: Any
    tokenizer: Tokenizer | None = None
    stop_tokens: Sequence[int] = ()
    generation_config: dict = field(default_factory=dict)
    digest: str = ""
    needs: dict[str, str] = field(default_factory=dict)

    @property
    def as_base(self) -> str:
        """A digest of what an adapter takes from this model, with the ends of its responses."""
        return digest([], f"{self.digest} {sorted(self.stop_tokens)}")


# One tensor if tie_word_embeddings.
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
RESUMING = ("recipe.json", "optimizer.safetensors", "state.json", "metrics.jsonl")
LARGEST = 1e18  # of a weight, whose square float32 has room for
# What code raises that is given the content of a wrong file; torch raises RuntimeError too.
WRONG = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


def check_intact(path: str | Path) -> None:
    """DataError if a file that the policy is loaded from has another checksum than is stored."""
    path = Path(path)
    if not (path / CHECKSUMS).exists():
        return
    if why := first_problem(path, lambda name: name not in RESUMING):
        raise DataError(f"{why} (if the change was meant, remove {path / CHECKSUMS})")


def load(path: str | Path, intact: bool = False) -> Checkpoint:
    """Load a checkpoint, the model in float32 on the CPU.

    path    a checkpoint directory, a run directory or a hub id; of a PEFT directory it is the base
            model with the adapter
    intact  whether it has been compared with its checksums already

    FileNotFoundError if a file is missing, ValueError for anything wrong in one. No code of the
    checkpoint is run.
    """
    path = find(path)
    if not intact:
        check_intact(path)
    if (path / "adapter_config.json").exists():
        return load_adapted(path)
    config = read_json(path / "config.json")
    model = load_weights(path, config)
    if not isinstance(model, Transformer):
        return Checkpoint(model)
    generation = {}
    if (path / "generation_config.json").exists():
        generation = read_json(path / "generation_config.json")
    tokenizer = Tokenizer.load(path)
    named = [*end_tokens(generation), *end_tokens(config)]
    stop_tokens = all_ends(path, model, tokenizer, named)
    known = digest(weight_files(path), f"{model.config} {tokenizer.backend.to_str()}")
    return Checkpoint(model, tokenizer, stop_tokens, generation, known)


def all_ends(path: Path, model: Any, tokenizer: Tokenizer, named: list) -> list[int]:
    """Return the end tokens of a tokenizer and those named elsewhere, each once.

    The end of a message of an instruct model may stand in any one place; TRL and vLLM join them.
    """
    ends = [*tokenizer.ends, *named]
    # A number that is left from another vocabulary ends nothing.
    known = [end for end in ends if end in range(model.config.vocab_size)]
    wrong = [end for end in ends if end not in known]
    if wrong and not (known and all(isinstance(end, int) for end in wrong)):
        raise ValueError(
            f"{path} has eos_token_id {wrong[0]!r:.40}, which is no token of the model"
        )
    return [*dict.fromkeys(known)]


def load_weights(path: Path, config: dict) -> Any:
    """Return the model of a parsed config.json with the weights of a directory, in float32.

    The model is made on the meta device, so that memory is only taken for tensors that the files
    hold, whatever sizes config.json asks for.
    """
    try:
        with torch.device("meta"), Uninitialised():
            model: Any = from_config(config)
        state: dict[str, Tensor] = {}
        for file in weight_files(path):
            state |= read_weights(file)
        # A classifier has no such option.
        tied = getattr(model.config, "tie_word_embeddings", False)
        if tied:
            # One of both will do. Two matrices stay two, as for transformers.
            head = state.get(HEAD)
            if head is not None and not torch.equal(head, state.setdefault(EMBEDDING, head)):
                return load_weights(path, config | {"tie_word_embeddings": False})
            state[HEAD] = state.get(EMBEDDING, model.lm_head.weight)
        model.load_state_dict(state, assign=True)
        if tied:
            model.lm_head.weight = model.model.embed_tokens.weight
        return model
    except (*WRONG, RuntimeError) as error:
        raise ValueError(f"{path} cannot be loaded: {one_line(error)}") from None


def read_weights(file: Path) -> dict[str, Tensor]:
    """Return the weights of a safetensors file in float32; ValueError for numbers that are none."""
    state = {}
    for name, tensor in read_tensors(file).items():
        # Old checkpoints hold the frequencies of rotary positions too.
        if name.endswith("rotary_emb.inv_freq"):
            continue
        state[name] = tensor = as_float32(tensor).clone()
        # aminmax is ten times as fast as isfinite. NaN is below nothing.
        if tensor.is_complex() or tensor.numel() and not max(map(abs, tensor.aminmax())) < LARGEST:
            raise ValueError(f"{file} has complex, infinite or huge numbers or NaN in {name}")
    return state


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, which are mapped into memory and not yet read.

    Other formats are not read: a pickle can run code.
    """
    try:
        return load_file(regular(file))
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} is missing, and no pickle (.bin, .pt) is read") from None
    except (SafetensorError, IsADirectoryError) as error:
        raise ValueError(f"{file} is damaged: {one_line(error)}") from None


def load_adapted(path: Path) -> Checkpoint:
    """Do what `load` does for a PEFT directory."""
    try:
        base = load(base_of(path))
    except FileNotFoundError as error:
        raise ValueError(
            f"{path} is an adapter whose base model is not there ({error}): put it back, or a link"
        ) from None
    try:
        weights = path / "adapter_model.safetensors"
        config = read_json(path / "adapter_config.json")
        from_adapter(base.model, config, read_weights(weights))
    except (*WRONG, RuntimeError) as error:
        raise ValueError(f"{path} cannot be loaded: {one_line(error)}") from None
    check_same(path, "base", base.as_base, f"the base model {base_of(path)} of {path}")
    tokenizer = load_tokenizer(path)
    stop_tokens = all_ends(path, base.model, tokenizer, [*base.stop_tokens])
    known = digest([weights], f"{base.digest} {config.get('lora_alpha')}")
    needs = {"base": base.as_base}
    return replace(base, tokenizer=tokenizer, stop_tokens=stop_tokens, digest=known, needs=needs)


def check_same(path: Path, name: str, found: str, what: str) -> None:
    """ValueError if a checkpoint was saved with another digest of a model than was found."""
    for file in (path / "recipe.json", path / NEEDS):
        if file.exists() and read_json(file).get(name) not in (None, "", found):
            raise ValueError(f"{what} has changed: put it back")


def base_of(path: Path) -> Path:
    """Return the directory of the model that the adapter in a PEFT directory is for; ValueError if
    that is an adapter too, which may name this one."""
    base = find(str(read_json(path / "adapter_config.json").get("base_model_name_or_path")))
    if (base / "adapter_config.json").exists():
        raise ValueError(f"{path} is an adapter of {base}, which is an adapter itself")
    return base


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load the tokenizer of a checkpoint; an adapter may have none but its base model's."""
    path = find(path)
    if (path / "adapter_config.json").exists() and not (path / "tokenizer.json").exists():
        return load_tokenizer(base_of(path))
    return Tokenizer.load(path)


def save(
    path: str | Path,
    checkpoint: Checkpoint,
    *,
    recipe: dict | None = None,
    optimizer: Optimizer | None = None,
    state: dict | None = None,
    metrics: str | None = None,
) -> None:
    """Write a checkpoint directory in float32 that transformers loads as it is.

    checkpoint                 a model with LoRA is written as its adapter alone
    optimizer, state, metrics  what resuming needs; state becomes state.json

    Unknown keys of a loaded model's config.json and generation_config.json are kept. The directory
    is complete or not there. OSError if `path` exists. Of a divided model, save what
    sharding.Gathered.state returns.
    """
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"{path} exists: save to another path, or remove it")
    model = checkpoint.model
    temporary = path.with_name(path.name + ".incomplete")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        if has_lora(model):
            if recipe is None:
                write_json(temporary / NEEDS, checkpoint.needs)
            write_json(temporary / "adapter_config.json", model.adapter_config)
            write_tensors(temporary / "adapter_model.safetensors", lora_state(model))
        else:
            write_model(temporary, checkpoint)
        if checkpoint.tokenizer is not None:
            checkpoint.tokenizer.save(temporary)
        if recipe is not None:
            write_json(temporary / "recipe.json", recipe | checkpoint.needs)
        if optimizer is not None:
            save_file(optimizer_tensors(model, optimizer), temporary / "optimizer.safetensors")
            write_json(temporary / "state.json", state)
        if metrics is not None:
            write_text(temporary / "metrics.jsonl", metrics)
        publish(temporary, path)
    except BaseException:
        # A full disk gets its space back.
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_model(directory: Path, checkpoint: Checkpoint) -> None:
    """Write a whole model: its weights and the files that say how to read and use them."""
    model = checkpoint.model
    config = model.config.to_hf()
    if checkpoint.tokenizer is not None:
        generation = checkpoint.generation_config or {"do_sample": True, "temperature": 1.0}
        stop_tokens = sorted(checkpoint.stop_tokens)
        ends = {"eos_token_id": stop_tokens} if stop_tokens else {}
        config |= ends
        write_json(directory / "generation_config.json", generation | ends)
    write_json(directory / "config.json", config)
    weights = model.state_dict()
    if config.get("tie_word_embeddings"):
        del weights[HEAD]
    write_tensors(directory / "model.safetensors", weights)
    # Without an index vLLM takes every *.safetensors file of a directory for weights.
    files = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model.safetensors")}
    write_json(directory / "model.safetensors.index.json", files)


def save_into(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a model, or its adapter, and its tokenizer in place of what a directory holds.

    Nothing is replaced before all is written, and files of no model stay. A link is replaced, not
    what it points to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        new = Path(temporary) / "model"
        save(new, checkpoint)
        # Until everything has followed, the new checksums refuse the directory.
        os.replace(new / CHECKSUMS, folder / CHECKSUMS)
        for pattern in (*MODEL_FILES, *CARRIED):
            for old in folder.glob(pattern):
                old.unlink()
        # The tokenizer goes before the config.
        for file in sorted(new.iterdir(), reverse=True):
            os.replace(file, folder / file.name)
        flush(folder)


def write_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file in float32 that transformers and PEFT can read."""
    tensors = {name: as_float32(tensor).contiguous() for name, tensor in tensors.items()}
    save_file(tensors, file, metadata={"format": "pt"})


def as_float32(tensor: Tensor) -> Tensor:
    """Return a tensor of weights in float32 and one of counts as it is."""
    return tensor.float() if tensor.is_floating_point() else tensor


def set_latest(run: str | Path, name: str) -> None:
    """Let RUN/latest name a checkpoint, which must be complete already."""
    write_text(Path(run) / "latest", name + "\n")


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state by parameter, as NAME.exp_avg or NAME.momentum_buffer."""
    return {
        f"{name}.{key}": value.contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


@contextlib.contextmanager
def one_sentence() -> Iterator[None]:
    """Raise UsageError for what is wrong in the state of a run; decorates what reads it."""
    try:
        yield
    except (OSError, *WRONG) as error:
        raise UsageError(
            "the run cannot be resumed, as a file of its checkpoint is wrong "
            f"({type(error).__name__}: {one_line(error)}): start another run with --out DIR"
        ) from None


def load_optimizer(path: str | Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Give an optimizer the state in a checkpoint, on the devices of the parameters.

    FileNotFoundError without optimizer.safetensors; ValueError or KeyError if it is damaged, or not
    the state of this optimizer.
    """
    tensors = read_tensors(Path(path) / "optimizer.safetensors")
    names = {parameter: name for name, parameter in model.named_parameters()}
    # Before the first update there is no state.
    for group in optimizer.param_groups if tensors else ():
        keys = ("step", "exp_avg", "exp_avg_sq") if "betas" in group else ("momentum_buffer",)
        for parameter, key in itertools.product(group["params"], keys):
            value = tensors.pop(f"{names[parameter]}.{key}").float()
            if key == "step":
                # Fused Adam counts on the parameter's device, and each rank has the count.
                value = value.to(parameter.device)
            else:
                value = sharding.placed_like(parameter, value)
            optimizer.state[parameter][key] = value
    if tensors:
        raise ValueError(f"{path} has the state of another model: {next(iter(tensors))}")
