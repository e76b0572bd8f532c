"""Chat templates: rendered as transformers renders them, in a sandbox, and carried over by
checkpoints."""

import json
from dataclasses import replace

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from maxrl.models import chat_template
from maxrl.models.tokenizer import CONFIG, ROLES, Tokenizer
from maxrl.system import templates
from maxrl.system.errors import UsageError
from maxrl.tasks import Example
from tests.helpers import tiny
from tests.helpers.chat_templates import CONVERSATIONS, SMOLLM2, TEMPLATES, turn
from tests.helpers.tables import cells, each

WORDS = ("<pad>", "<bos>", "<eos>", "<unk>", "user:", "a", "b", "assistant:", "system:")
USER = [turn("user", "a b")]
WORD_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %} {{ m.role }}: {{ m.content }} {{ eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %} assistant:{% endif %}"
)


def tokenizer(template=None, **config) -> Tokenizer:
    result = Tokenizer.from_vocabulary(WORDS)
    result.config |= config | ({} if template is None else {"chat_template": template})
    return result


VARIANTS = {
    "special tokens": "{{ bos_token }}|{{ unk_token }}|{{ sep_token is defined }}|{{ nothing }}",
    "whitespace": "  {% if true %}\n    x\n  {% endif %}\n{%- for m in messages %}\n"
    "  {{ m['content'] }}\n{% endfor %}\n\n",
    "loop controls": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
    "{{ m.role }}{% endfor %}",
    "tojson": "{{ messages | tojson }}"
    "{{ {'b': '<>', 'a': [1, none, true, 'é']} | tojson(indent=2, sort_keys=true) }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n"
    "{% endfor %}",
    "tools": "{{ tools is none }}{{ documents is none }}{{ tools is defined }}",
    "functions": "{{ strftime_now('%Y') | length }}{{ range(3) | list }}{{ dict(a=1) }}"
    "{{ namespace(x=2).x }}",
    "set and macro": "{% macro f(x) %}<{{ x }}>{% endmacro %}{% set ns = namespace(n=0) %}"
    "{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ f(m.role) }}{% endfor %}{{ ns.n }}",
}
ALL = TEMPLATES | VARIANTS
BOS = {"content": "<bos>", "lstrip": False, "__type": "AddedToken"}


def oracle(ours, folder):
    """What transformers reads from the folder that a tokenizer is saved in."""
    ours.save(folder)
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", ALL)
def test_rendered_as_transformers_does(name, tmp_path):
    """The published templates, and what its language has besides."""
    ours = tokenizer(ALL[name], bos_token=BOS)
    theirs = oracle(ours, tmp_path)
    special = {role: ours.special(role) for role in ROLES if ours.special(role)}
    for messages in CONVERSATIONS.values():
        for prompt in (True, False):
            options = {"add_generation_prompt": prompt}
            expected = theirs.apply_chat_template(messages, tokenize=False, **options)
            found = chat_template.render(ALL[name], messages=messages, **options, **special)
            assert found == expected
            assert not prompt or ours.render(messages) == expected


def test_the_default_of_named_templates():
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert tokenizer(named).render(USER) == "D"
    with pytest.raises(ValueError, match="tool_use"):
        tokenizer(named[:1]).render(USER)


SANDBOXED = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('true') }}",
    "{{ (messages | attr('__class__')).mro() }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{% set ns = namespace(__class__=1) %}{{ ns.__class__.x }}",
    "{% include '/etc/passwd' %}",
    "{{ open('/etc/passwd') }}",
]
ERRORS = dict.fromkeys(SANDBOXED, "the chat template cannot be rendered") | {
    "{{ raise_exception('Roles must\nalternate') }}": "Roles must alternate",
    "{% if %}": "TemplateSyntaxError",
    "{{ messages[7].content }}": "UndefinedError",
    "{{ 1 / 0 }}": "ZeroDivisionError",
    "{{ messages[0]['role'] + 1 }}": "TypeError",
    "{{ '\\ud800' }}": "surrogates not allowed",
}


@pytest.mark.parametrize("template", ERRORS)
def test_a_template_that_fails(template):
    """It stays in its sandbox, and what is said is one sentence."""
    messages = [dict(m) for m in USER]
    with pytest.raises(ValueError, match=ERRORS[template]) as caught:
        tokenizer(template).render(messages)
    assert messages == USER
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ENDLESS = {
    "loops in loops": f"{{% for k in range(9) %}}{LOOPS}{{% endfor %}}",
    "a loop over a text": "{% for i in 'a' * 9999999 %}{% for j in 'a' * 9999999 %}{% endfor %}"
    "{% endfor %}",
    "calls that double": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "in C": "{{ ((9 ** 9999) ** 999) ** 99 > 1 }}",
    "filters": "{{ ((range(99999) | list) * 99) | map('string') | map('length') | sum }}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_runs_for_ever(name, monkeypatch):
    """It ends with a sentence after a limit of CPU time, and the next one is rendered."""
    monkeypatch.setattr(chat_template, "SECONDS", 0.3)
    words = tokenizer(ENDLESS[name])
    with pytest.raises(ValueError, match="cannot be rendered: more than 0.3 seconds of CPU time"):
        words.render(USER)
    # A run names it as it names any other template that fails.
    with pytest.raises(ValueError, match="cannot be rendered"):
        words.encode_prompt(USER)
    assert tokenizer(WORD_TEMPLATE).render(USER)


@pytest.mark.parametrize("template", ["{{ 'a' * 10 ** 11 }}", "{{ ('a' * 9 ** 9) * 9 }}"])
def test_a_template_that_takes_all_memory(template):
    with pytest.raises(ValueError, match="MemoryError"):
        tokenizer(template).render(USER)
    assert tokenizer(WORD_TEMPLATE).render(USER)


def test_messages_that_json_cannot_hold():
    with pytest.raises(ValueError, match="cannot be rendered"):
        tokenizer(WORD_TEMPLATE).render([{"role": "user", "content": "a", "at": {1, 2}}])


@pytest.mark.parametrize("version", ["2.11", "3.1.5"])
def test_an_old_jinja_is_refused(version, monkeypatch, tmp_path):
    """Before 3.1.6 its sandbox has holes."""
    monkeypatch.setattr("jinja2.__version__", version)
    with pytest.raises(ValueError, match="known holes"):
        templates.work(SMOLLM2, {"messages": USER})
    for later in ("3.1.6", "3.2.0rc1"):
        monkeypatch.setattr("jinja2.__version__", later)
        assert templates.work(SMOLLM2, {"messages": USER})
    # The process that renders finds another jinja2, and says how to mend it.
    (tmp_path / "jinja2.py").write_text(f"__version__ = {version!r}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(chat_template, "POOL", replace(chat_template.POOL))
    with pytest.raises(UsageError, match="known holes.*pip install -U jinja2"):
        tokenizer(SMOLLM2).render(USER)


def test_prompts_are_encoded_without_further_special_tokens():
    """A tokenizer whose post-processor writes <bos> does not write it before the template's own."""
    from tokenizers.processors import TemplateProcessing

    words = tokenizer(WORD_TEMPLATE)
    words.backend.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 1)]
    )
    assert words.encode_prompt(USER) == [1, 4, 5, 6, 2, 7]
    assert words.encode_prompt("<bos> a b") == [1, 5, 6]


@pytest.mark.parametrize(
    "messages", [[turn("system", "a"), *USER], [turn("assistant", "a")], USER * 2]
)
def test_one_user_message_needs_no_template(messages):
    plain = tokenizer()
    assert plain.chat_template is None
    assert plain.encode_prompt(USER) == plain.encode_prompt("a b") == [5, 6]
    with pytest.raises(ValueError, match="no chat template"):
        plain.encode_prompt(messages)


def test_where_the_template_stands(tmp_path):
    """A text, and chat_template.jinja before it; that both are saved is in test_checkpoint.py."""
    inner = tokenizer("D{{ messages[0].content }}")
    assert inner.render(USER) == "Da b"
    inner.save(tmp_path)
    text = "J\u00e9{{ messages[0].content }}\n"
    (tmp_path / "chat_template.jinja").write_text(text, encoding="utf-8")
    assert Tokenizer.load(tmp_path).render(USER) == "J\u00e9a b"


def test_the_policy_renders_chats():
    """Rollouts and demonstrations start from the rendered prompt; an answer without end token
    gets the tokenizer's."""
    policy = tiny.policy()
    policy.checkpoint.tokenizer = tokenizer(WORD_TEMPLATE)
    policy.checkpoint.stop_tokens = [3, 2]
    examples = [Example(USER, "b a"), Example("a", "b <eos>")]
    shown = policy.demonstrate(examples)
    for rollouts in (policy.rollout(examples, 2), shown):
        assert [p.tolist() for p in rollouts.prompts] == [[1, 4, 5, 6, 2, 7], [5]]
    assert shown.tokens[:, 0].tolist() == [[6, 5, 2], [6, 2, 0]]
    assert shown.lengths.flatten().tolist() == [3, 2]


# Stop tokens, the end of a turn and the template. The tokenizer's end token is <eos>, 2. The last
# have no end of a turn that is a stop token, no answers, or a fault.
ENDS = """
[5, 2] | 2 | WORDS
[2, 5, 3] | 3 | OTHERS
[3, 2, 0] | 0 | {% for m in messages %}<bos> {{ m.content }} <pad> <unk> {% endfor %}
[6, 2] | 2 | {{ messages[-1].content }} a
[5, 2] | 2 | user: {{ messages[0].content }} a
[5, 2] | 2 | {{ messages[-1].nothing.at_all }}
"""
ENDS = ENDS.replace("OTHERS", WORD_TEMPLATE.replace("{{ eos_token }}", "<unk>"))


@pytest.mark.parametrize(
    "row", [*cells(ENDS.replace("WORDS", WORD_TEMPLATE)), ["[5, 6]", "5", None]]
)
def test_the_end_of_a_turn(row):
    """It is what the warm-up teaches; else the tokenizer's end token, or the first stop token."""
    stop, end, template = row
    policy = tiny.policy()
    policy.checkpoint.tokenizer = tokenizer(template)
    policy.checkpoint.stop_tokens = json.loads(stop)
    assert policy.demonstrate([Example("a", "user:")]).tokens[0, 0, -1] == int(end)


def test_a_turn_that_no_stop_token_ends():
    """A response would go on into another one."""
    template = "{% for m in messages %}{{ m.content }} <end> {% endfor %}"
    words = tokenizer(template)
    words.backend.add_special_tokens(["<end>"])
    end = words.id("<end>")
    assert words.unstopped([2]) == "<end>"
    assert words.unstopped([2, end]) is words.unstopped([end]) is None
    assert tokenizer(WORD_TEMPLATE).unstopped([2]) is tokenizer().unstopped([2]) is None


def test_a_special_token_of_the_vocabulary_alone(tmp_path):
    """It is one token, as in transformers, and not cut into bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate([*letters, "<|im_end|>"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    Tokenizer(backend, config).save(tmp_path)
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.load(tmp_path)
    for text in ("hi<|im_end|>", "<|im_end|> a"):
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text) == ids and len(letters) in ids


def test_a_token_of_the_vocabulary_that_is_not_special(tmp_path):
    """It is one token, too, and a reward function sees it in the response."""
    words = tokenizer()
    words.backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    named = {
        "4": {"content": "user:", "special": False},
        "2": {"content": "<eos>", "special": True},
    }
    words.config["added_tokens_decoder"] = named
    words.save(tmp_path)
    ours = Tokenizer.load(tmp_path)
    assert ours.encode("user:<eos>") == [4, 2]
    assert ours.decode([4, 2], skip_special=True).strip() == "user:"


# What files beside tokenizer.json say of "<new>", which is in the vocabulary there, or added too.
SAID = """
{"added_tokens_decoder": {"NUMBER": {"content": "<new>", "lstrip": true, "special": true}}}
{"added_tokens_decoder": {"NUMBER": {"content": "<new>", "rstrip": true, "special": false}}}
{"added_tokens_decoder": {"NUMBER": {"content": "<new>", "single_word": true, "special": true}}}
{"added_tokens_decoder": {"NUMBER": {"content": "<new>", "normalized": true, "special": false}}}
{"eos_token": "<new>"}
{"additional_special_tokens": ["<new>"]}
{"extra_special_tokens": {"new_token": "<new>"}}
{"split_special_tokens": true}
"""


@pytest.mark.parametrize("added", [None, False, True])
@each("line", SAID)
def test_properties_of_a_token(tmp_path, line, added):
    """Ids, and texts without special tokens, are those of transformers; templates know its role."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    letters = trainers.BpeTrainer(special_tokens=["<unk>", "<bos>"], show_progress=False)
    backend.train_from_iterator(["axy \u2581<new>"], letters)
    vocabulary = backend.get_vocab()
    number = vocabulary.setdefault("<new>", len(vocabulary))
    backend.model = models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>")
    steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    backend.normalizer = normalizers.Sequence(steps)
    if added is not None:
        backend.add_tokens([tokenizers.AddedToken("<new>", special=added, normalized=False)])
    config = CONFIG | {"bos_token": "<bos>", "chat_template": "{{ bos_token }}{{ new_token }}"}
    config |= json.loads(line.replace("NUMBER", str(number)))
    theirs = oracle(Tokenizer(backend, config), tmp_path)
    ours = Tokenizer.load(tmp_path)
    for text in ("x <new> y", "x<new>y", "<new>", "a <bos>  <new>"):
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text) == ids
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.render(USER) == theirs.apply_chat_template(USER, tokenize=False)


# What tokenizer_config.json has, and special_tokens_map.json.
HELD = """
{} | {"eos_token": "<eos>", "bos_token": BOS}
{"eos_token": "<bos>", "pad_token": "<pad>"} | {"eos_token": "<eos>"}
{"eos_token": "<bos>", "added_tokens_decoder": {}} | {"eos_token": "<eos>"}
{"eos_token": BOS, "added_tokens_decoder": {"1": BOS}} | {"bos_token": "<eos>"}
{"eos_token": "<eos>"} | {}
"""


@each("config, older", HELD.replace("BOS", json.dumps(BOS)))
def test_roles_as_transformers_reads_them(tmp_path, config, older):
    """special_tokens_map.json of an older checkpoint gives roles, which the templates write."""
    words = tokenizer("{{ eos_token }} {{ bos_token }} {{ pad_token }} {{ sep_token }}")
    for role in ROLES:
        words.config.pop(role, None)
    words.config |= json.loads(config)
    words.files = {"special_tokens_map.json": older.encode()}
    theirs = oracle(words, tmp_path)
    ours = Tokenizer.load(tmp_path)
    assert ours.render(USER) == theirs.apply_chat_template(USER, tokenize=False)
    assert ours.ends == ([] if theirs.eos_token is None else [theirs.eos_token_id])


# Files beside tokenizer.json, and what they have; NEW is a token with this content.
ADDED = """
tokenizer_config.json {"eos_token": "<new>"}
tokenizer_config.json {"mask_token": NEW}
tokenizer_config.json {"added_tokens_decoder": {"9": NEW, "2": {"content": "<bos>"}}}
tokenizer_config.json {"additional_special_tokens": ["<bos>", "<new>"]}
tokenizer_config.json {"extra_special_tokens": {"image_token": "<new>"}}
special_tokens_map.json {"eos_token": NEW}
added_tokens.json {"<new>": 9}
"""
NEW = '{"content": "<new>", "lstrip": false, "special": true, "__type": "AddedToken"}'


@each("line", ADDED)
def test_a_token_that_tokenizer_json_lacks(tmp_path, line):
    """transformers adds it, so that texts have other ids; once it is there, all is well."""
    file, content = line.replace("NEW", NEW).split(maxsplit=1)
    words = tokenizer()
    if file == "tokenizer_config.json":
        words.config |= json.loads(content)
    else:
        words.files = {file: content.encode()}
    words.save(tmp_path)
    with pytest.raises(ValueError, match="'<new>'"):
        Tokenizer.load(tmp_path)
    pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path).save_pretrained(
        tmp_path
    )
    assert Tokenizer.load(tmp_path).encode("a <new>") == [5, len(WORDS)]


def test_templates_print_one_date():
    """A run that goes on, and an evaluation of it, have the prompts of an uninterrupted run."""
    words = Tokenizer.from_vocabulary(("a", "b"))
    words.config["chat_template"] = "{{ strftime_now('%F %T') }} {{ messages[0].content }}"
    assert words.render(USER) == "2025-01-01 00:00:00 a b"


def test_tokenizers_that_cannot():
    """A word without an [UNK] to stand for it: a sentence."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 40}, unk_token="[UNK]"))
    with pytest.raises(ValueError, match="the tokenizer cannot encode 'b': .*UNK"):
        Tokenizer(backend, {}).encode("b")
