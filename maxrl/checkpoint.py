"""Checkpoints: Hugging Face directories in and out, the training state beside them, and where a run keeps them.

    RUN/recipe.json      the resolved recipe and the command        RUN/metrics.jsonl   one object per step
    RUN/samples.jsonl    what the model writes, now and then
    RUN/latest           the name of the newest checkpoint          RUN/step-000160/    a checkpoint:
        config.json, generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json, and what else the
        loaded checkpoint had for its tokenizer  (for transformers and vLLM; a classifier has config.json and
        model.safetensors, with torchvision's names)
        recipe.json, optimizer.safetensors, state.json, metrics.jsonl up to here                       (for --resume)
        checksums.json                                                                        (of all the others)

transformers' PreTrainedTokenizerFast reads the tokenizer of a vocabulary of words, the maze's; AutoTokenizer of its version 5
takes every qwen2 model's tokenizer for Qwen2's own and would read nothing.
A run with --lora-rank writes a PEFT adapter instead (adapter_config.json, adapter_model.safetensors; the model stays where
it was) with those four files; with --lora-merge a checkpoint of the merged model, and the adapter in its folder lora/.
"""

import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

from maxrl.config import Config, misfit
from maxrl.io.files import CHECKSUMS, first_problem, publish, read_json, write_json, write_text
from maxrl.io.hub_files import base_name, end_tokens, find, opened, weight_files  # noqa: F401
from maxrl.io.tokenizer import Tokenizer
from maxrl.models import from_config
from maxrl.models.lora import from_adapter, has_lora, lora_state, merged_state
from maxrl.models.transformer import Transformer
from maxrl.parallel import sharding

FLOATS = ("F32", "BF16", "F16")  # of files that are read, by safetensors' names
TABLE = "rotary_emb.inv_freq"  # of old checkpoints; it is made from config.json
STATE = {
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.SGD: ("momentum_buffer",),
}
RESUMING = ("recipe.json", "optimizer.safetensors", "state.json", "metrics.jsonl")


def check_intact(path):
    """ValueError where a file that the policy is loaded from is not what the checksums of a checkpoint of ours say."""
    path = find(path)
    if (path / CHECKSUMS).exists() and (why := first_problem(path, but=RESUMING)):
        raise ValueError(f"{why} (if the change was meant, remove {path / CHECKSUMS})")


class Uninitialised(TorchFunctionMode):
    """Parameters made within stay as the memory was, for a checkpoint to fill: 4 billion random numbers take a minute."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if getattr(function, "__module__", None) == "torch.nn.init":
            return (args or [kwargs["tensor"]])[0]
        return function(*args, **kwargs or {})


def load_model(path) -> tuple[torch.nn.Module, Tokenizer | None, list[int]]:
    """Model (float32), tokenizer and stop tokens (all of generation_config's eos_token_id) of a checkpoint directory.

    A classifier has neither tokenizer (None) nor stop tokens. A PEFT directory gives its base model with the adapter.
    Nothing in the directory is believed or run: FileNotFoundError where a file is missing, ValueError, in one sentence, for
    anything that is wrong in one. The model gets its memory after the files were found to hold that much.
    """
    path = find(path)
    if (path / "adapter_config.json").exists():
        return load_adapted(path)
    config = read_json(path / "config.json")
    files = weight_files(path)
    check_weights(path, files, planned(path, config))
    with Uninitialised():
        model = from_config(config)
    load_weights(path, files, model)
    if not isinstance(model, Transformer):
        return model, None, []
    if (path / "generation_config.json").exists():
        model.generation_config = read_json(path / "generation_config.json")
    stop = end_tokens(model.generation_config) or end_tokens(config)
    if not all(type(token) is int and 0 <= token < model.config.vocab_size for token in stop):
        raise ValueError(
            f"{path} has eos_token_id {str(stop)[:60]}, which are not tokens of its {model.config.vocab_size}"
        )
    return model, Tokenizer.load(path), stop


def planned(path: Path, config: dict) -> torch.nn.Module:
    """The model that a config.json asks for, on the meta device, without memory; ValueError where there is none."""
    try:
        # To draw numbers on the meta device torch would load its compiler.
        with torch.device("meta"), Uninitialised():
            return from_config(config)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except (RuntimeError, TypeError) as error:  # sizes that no tensor can have
        raise ValueError(
            f"{path}: config.json asks for impossible sizes: {str(error).splitlines()[0][:100]}"
        ) from None


def load_adapted(path: Path) -> tuple[torch.nn.Module, Tokenizer, list[int]]:
    """As load_model, of a PEFT directory: what it does not hold is its base model's."""
    try:
        base = find(base_of(path))
        if (base / "adapter_config.json").exists():  # this one itself, maybe
            raise ValueError(
                f"{path} is a LoRA adapter of {base}, which is an adapter too: merge that one first"
            )
        model, _, stop = load_model(base)
    except FileNotFoundError as error:
        raise ValueError(
            f"{path} is a LoRA adapter and its base model is not there ({error}): put it back, or write where "
            "it is now as base_model_name_or_path into adapter_config.json"
        ) from None
    return load_lora(model, path), load_tokenizer(path), stop


def base_of(path: Path) -> str:
    """What the adapter in a PEFT directory is made for."""
    base = read_json(path / "adapter_config.json").get("base_model_name_or_path")
    if not base or not isinstance(base, str):
        raise ValueError(
            f"{path} is a LoRA adapter whose adapter_config.json names no base_model_name_or_path"
        )
    return base


def load_tokenizer(path) -> Tokenizer:
    """The tokenizer of a checkpoint; of an adapter that has none it is the base model's."""
    path = find(path)
    if (path / "adapter_config.json").exists() and not (path / "tokenizer.json").exists():
        return load_tokenizer(base_of(path))
    return Tokenizer.load(path)


def load_lora(model: torch.nn.Module, directory) -> torch.nn.Module:
    """`model`, the base, with the adapter of a PEFT directory. FileNotFoundError and ValueError as in load_model."""
    directory = Path(directory)
    file = directory / "adapter_model.safetensors"
    if not file.is_file():
        raise FileNotFoundError(
            f"{directory} holds no {file.name}; a pickle is not read, because it can run code"
        )
    try:
        return from_adapter(model, read_json(directory / "adapter_config.json"), load_file(file))
    except (SafetensorError, TypeError, RuntimeError) as error:
        raise ValueError(f"{file} cannot be read ({error}): the file is damaged") from None
    except ValueError as error:
        raise ValueError(f"{directory}: {error}") from None


def aliases(model: torch.nn.Module) -> dict[str, str]:
    """Names of a tensor that has two, and the one that counts."""
    tied = getattr(model.config, "tie_word_embeddings", False)
    return {"lm_head.weight": "model.embed_tokens.weight"} if tied else {}


def tensors(path: Path, files: list[Path], model: torch.nn.Module):
    """Yield every tensor of the files that counts, as the open file, its name, and of two names the one that counts."""
    same = aliases(model)
    for file in files:
        with opened(path, file) as content:
            for name in content.keys():  # noqa: SIM118 (no mapping, only a file with keys)
                if not name.endswith(TABLE):
                    yield content, name, same.get(name, name)


def check_weights(path: Path, files: list[Path], model: torch.nn.Module):
    """ValueError unless the files hold every tensor of the model (of the meta device), none too many, by their headers."""
    state = model.state_dict()
    found = set(aliases(model))
    wrong = []
    for content, name, counts in tensors(path, files, model):
        header = content.get_slice(name)
        shape = tuple(header.get_shape())
        dtype = header.get_dtype()
        ours = state.get(name)
        if ours is None:
            wrong.append(f"{name} {shape} is too many")
        elif tuple(ours.shape) != shape:
            wrong.append(f"{name} {shape} is not {tuple(ours.shape)}")
        elif dtype not in (FLOATS if ours.is_floating_point() else ("I64",)):
            wrong.append(f"{name} is {dtype}")
        found.add(counts)
    wrong += [f"{name} is missing" for name in state if name not in found]
    if wrong:
        raise ValueError(
            f"the weights in {path} do not fit its config.json: {wrong[0]}"
            + f", the first of {len(wrong)} that do not" * (len(wrong) > 1)
        )


def load_weights(path: Path, files: list[Path], model: torch.nn.Module):
    """Every tensor of the model from files that `check_weights` has seen, copied one by one into the model's own: beside it
    no more than one tensor is in memory. ValueError where two of one name differ."""
    state = model.state_dict()
    filled = set()
    for content, name, counts in tensors(path, files, model):
        tensor = content.get_tensor(name)
        ours = state[name]
        if counts not in filled:
            ours.copy_(tensor)
        elif not torch.equal(ours, tensor.to(ours.dtype)):
            raise ValueError(
                f"the weights in {path} do not fit its config.json: {name} differs from what it is tied to"
            )
        filled.add(counts)


def save(
    path,
    model: torch.nn.Module,
    tokenizer: Tokenizer | None = None,
    stop_tokens=(),
    *,
    recipe: dict | None = None,
    optimizer=None,
    state=None,
    metrics: str | None = None,
    dtype: str = "float32",
    merge: bool = False,
):
    """Write a checkpoint directory that transformers loads as it is (a classifier without tokenizer: torchvision's
    names). Appears whole or not at all. What a loaded model's config.json and generation_config.json said still stands
    in them. dtype: of the weights, "float32" or, for use but not to train on, "bfloat16". A model with LoRA is written as
    its adapter, which stays float32, or with `merge` as a plain model whose folder lora/ holds what resuming needs.

    Everything is written to a temporary directory beside `path`, flushed to disk, then renamed. Raises FileExistsError
    if `path` exists.
    """
    path = Path(path)
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"weights are saved in float32 or bfloat16, not {dtype}")
    if path.exists():
        raise FileExistsError(f"{path} exists: nothing is overwritten")
    temporary = path.with_name(path.name + ".incomplete")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        adapted = has_lora(model)
        training = temporary / "lora" if adapted and merge else temporary
        if not adapted or merge:
            write_model(
                temporary,
                model,
                tokenizer,
                stop_tokens,
                dtype,
                beside_others=optimizer is not None and not adapted,
            )
        if adapted:
            write_adapter(training, model)
        if recipe is not None:
            for folder in {temporary, training}:
                write_json(folder / "recipe.json", recipe)
        if optimizer is not None:
            save_file(optimizer_tensors(model, optimizer), training / "optimizer.safetensors")
            write_json(training / "state.json", state)
        if metrics is not None:
            write_text(training / "metrics.jsonl", metrics)
        publish(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)  # a disk that is full gets back what it had
        raise


def write_adapter(directory: Path, model):
    """What PEFT reads of a model with LoRA."""
    directory.mkdir(exist_ok=True)
    write_json(directory / "adapter_config.json", model.adapter_config)
    tensors = {name: tensor.contiguous() for name, tensor in lora_state(model).items()}
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})


def write_model(directory: Path, model, tokenizer, stop_tokens, dtype: str, beside_others: bool):
    """Everything of a checkpoint that is not for --resume; with an index of the weights if other tensors lie beside."""
    if tokenizer is None:
        config = model.config.to_hf()
    else:
        config = model.config.to_hf(dtype)
        generation = model.generation_config or {"do_sample": True, "temperature": 1.0}
        if set(end_tokens(generation)) != set(stop_tokens):
            generation = generation | {"eos_token_id": sorted(stop_tokens)}
        if not set() < set(end_tokens(config)) <= set(stop_tokens):
            config["eos_token_id"] = sorted(stop_tokens)
        write_json(directory / "generation_config.json", generation)
        tokenizer.save(directory)
    write_json(directory / "config.json", config)
    weights = {
        name: (
            tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor
        ).contiguous()
        for name, tensor in merged_state(model).items()
    }
    for name in aliases(model):
        del weights[name]  # one tensor under two names: the file holds it once
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    if beside_others:
        # vLLM takes every *.safetensors of a directory for weights, unless an index names those that are.
        index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model.safetensors")}
        write_json(directory / "model.safetensors.index.json", index)


def set_latest(run, name: str):
    """Point RUN/latest at a checkpoint, which must be whole already."""
    write_text(Path(run) / "latest", name + "\n")


def optimizer_tensors(model, optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state by parameter name: Adam's `NAME.exp_avg`, `.exp_avg_sq`, `.step`, SGD's `.momentum_buffer`."""
    return {
        f"{name}.{key}": value.contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def load_optimizer(path, model, optimizer):
    """The reverse of `optimizer_tensors`, on the parameters' devices; ValueError for a file that is not of this model and
    optimizer, or damaged."""
    file = Path(path) / "optimizer.safetensors"
    trained = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    if not file.is_file():
        raise FileNotFoundError(f"there is no {file}: {path} is no checkpoint to resume from")
    wanted = {f"{name}.{key}" for name in trained for key in STATE[type(optimizer)]}
    with opened(path, file) as content:
        names = set(content.keys())
        if names not in (set(), wanted):  # SGD without momentum has none
            raise ValueError(
                f"{file} is not of this model and optimizer: {min(names ^ wanted)} is in one of them only"
            )
        for full_name in sorted(names):
            name, _, key = full_name.rpartition(".")
            parameter = trained[name]
            header = content.get_slice(full_name)
            found = tuple(header.get_shape())
            dtype = header.get_dtype()
            shape = () if key == "step" else tuple(parameter.shape)
            if found != shape or dtype not in FLOATS:
                raise ValueError(f"{file}: {full_name} {found} {dtype} is not {shape}")
            value = content.get_tensor(full_name)
            # Fused Adam counts where the parameter lies; each rank has the count.
            placed = (
                value.to(parameter.device)
                if key == "step"
                else sharding.placed_like(parameter, value)
            )
            optimizer.state[parameter][key] = placed


def recorded(directory) -> dict:
    """The recipe that recipe.json of a run or checkpoint holds, by the fields of Config; ValueError for what is none, field
    by field: the file may come from anywhere. A field that it lacks, being older, has its default."""
    file = Path(directory) / "recipe.json"
    recipe = read_json(file).get("config")
    if not isinstance(recipe, dict):
        raise ValueError(f"{file} holds no recipe")
    if wrong := misfit(recipe):
        raise ValueError(f"{file} has {wrong}")
    default = Config().to_dict()
    return default | {name: value for name, value in recipe.items() if name in default}
