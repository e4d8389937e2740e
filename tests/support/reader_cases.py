"""What the reader does with rows as people have them: one table for the tests and for docs/reader.md.

python -m tests.support.reader_cases > docs/reader.md
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

PAGE = """# What the reader does with your rows

Every line is a test ([`test_reader.py`](../tests/unit/data/test_reader.py)); this page is made from the tests' table.
A row is read whole or set aside with a reason ([Data](data.md)); a piece of a dialogue is never left out in silence.
"""


class Read(NamedTuple):
    """A row that is good: its turns as `role: text`, its answers, the index of the better one."""

    prompt: tuple[str, ...]
    answers: tuple[str, ...] = ()
    better: int | None = None


class Aside(NamedTuple):
    """A row that is set aside: the kind, and words of the reason."""

    kind: str
    words: str


class Case(NamedTuple):
    group: str
    what: str
    row: Mapping[str, Any]
    right: Read | Aside
    does: str
    """The page's words for what the reader does."""


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def bot(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(port: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "tides", "arguments": json.dumps({"port": port})}}]


def vote(value: Any) -> list[dict[str, Any]]:
    return [{"value": value, "status": "submitted"}]


PAIR = {"chosen": "Dry it.", "rejected": "Boil it."}
TWO = ("Dry it.", "Boil it.")
ASK = "How do I keep the basil?"
READ = Read((f"user: {ASK}",), TWO, 0)
HH = "\n\nHuman: {}\n\nAssistant: {}"
SIDES = {"response_a": "Dry it.", "response_b": "Boil it."}
PARTS, TURNS, ROLES, AGAIN, TOOLS, LABELS, SPACE = (
    "Pieces of a prompt",
    "Turns",
    "Roles and contents",
    "The prompt repeated in the answers",
    "Tools and thoughts",
    "Labels",
    "White space",
)


def rated(*pairs: tuple[str, Any], key: str = "overall_score") -> list[dict[str, Any]]:
    return [{"response": text, key: value} for text, value in pairs]


CASES = (
    # pieces of a prompt
    Case(PARTS, "`input` beside `instruction`, in a pair", {"instruction": "Name it.", "input": "a green leaf", **PAIR},
         Read(("user: Name it.\n\na green leaf",), TWO, 0), "behind the instruction, after an empty line"),
    Case(PARTS, "`input` beside `prompt`", {"prompt": "Name it:", "input": "a green leaf", **PAIR},
         Read(("user: Name it:\n\na green leaf",), TWO, 0), "the same"),
    Case(PARTS, "`input`, empty", {"instruction": ASK, "input": " ", **PAIR}, READ, "adds nothing"),
    Case(PARTS, "`input` that stands in the question already", {"prompt": f"{ASK} a pot", "input": "a pot", **PAIR},
         Read((f"user: {ASK} a pot",), TWO, 0), "adds nothing"),
    Case(PARTS, "`input` alone beside a pair", {"input": ASK, **PAIR}, READ, "the question"),
    Case(PARTS, "`context` beside `question`", {"context": "It is June.", "question": ASK, **PAIR},
         Read((f"user: It is June.\n\n{ASK}",), TWO, 0), "before the question"),
    Case(PARTS, "`context` as several texts", {"context": ["It is June.", "It rains."], "question": ASK, **PAIR},
         Read((f"user: It is June.\n\nIt rains.\n\n{ASK}",), TWO, 0), "before the question, in order"),
    Case(PARTS, "`context` as messages", {"context": [user("Hi."), bot("Hello.")], "question": ASK, **PAIR},
         Read(("user: Hi.", "assistant: Hello.", f"user: {ASK}"), TWO, 0), "earlier turns"),
    Case(PARTS, "`instruction` and `input`, no answers", {"instruction": "Name it.", "input": "a leaf"},
         Read(("user: Name it.\n\na leaf",)), "both halves"),
    Case(PARTS, "`instruction`, `input` and `output`",
         {"instruction": "Name it.", "input": "a leaf", "output": "Basil."},
         Read(("user: Name it.\n\na leaf",), ("Basil.",)), "both halves"),
    Case(PARTS, "`system` in a pair of `better` and `worse`",
         {"system": "Be brief.", "prompt": ASK, "better": "Dry it.",
         "worse": "Boil it."}, Read(("system: Be brief.", f"user: {ASK}"), TWO, 0), "the first turn"),
    Case(PARTS, "`system` beside PKU-SafeRLHF's columns",
         {"system": "Be brief.", "prompt": ASK, "response_0": "Dry it.",
         "response_1": "Boil it.", "better_response_id": 0}, Read(("system: Be brief.", f"user: {ASK}"), TWO, 0),
         "the first turn"),
    Case(PARTS, "`system` beside `messages`", {"system": "Be brief.", "messages": [user(ASK)]},
         Read(("system: Be brief.", f"user: {ASK}")), "the first turn"),
    Case(PARTS, "`system_prompt`, `system_message`", {"system_prompt": "Be brief.", "prompt": ASK, **PAIR},
         Read(("system: Be brief.", f"user: {ASK}"), TWO, 0), "the same as `system`"),
    Case(PARTS, "another system message in the turns", {"system": "Be brief.", "messages": [
         {"role": "system", "content": "Be long."}, user(ASK)]}, Aside("different-prompts", "another system message"),
         "two system messages"),
    Case(PARTS, "a text column of another name", {"passage": "It is June.", "prompt": ASK, **PAIR},
         Aside("unread-text", "--column context=passage; or leave it out on purpose: --ignore passage"),
         "names the column to give"),
    Case(PARTS, "a question of another name", {"ask": ASK, **PAIR}, Aside("missing-field", "--column prompt=ask"),
         "names the column to give"),
    Case(PARTS, "a list of turns of another name", {"so_far": [user("Hi."), bot("Hello.")], "prompt": ASK, **PAIR},
         Aside("unread-text", "--column history=so_far"), "names the column to give"),
    Case(PARTS, "pictures, videos, sounds", {"prompt": ASK, "images": ["leaf.png"], **PAIR},
         Aside("not-text", "`images`"), "are no text"),
    Case(PARTS, "a picture in bytes", {"prompt": ASK, "image": {"bytes": [137, 80, 78]}, **PAIR},
         Aside("not-text", "--ignore image"), "is no text"),
    Case(PARTS, "`<image>` at the beginning of a question, or in a line of its own",
         {"prompt": f"Look:\n<image>\n{ASK}", **PAIR}, Aside("not-text", "<image>"), "holds the place of a picture"),
    Case(PARTS, "`<image>` inside of a line", {"prompt": "What is the <image> element for?", **PAIR},
         Read(("user: What is the <image> element for?",), TWO, 0), "is what the text is about"),
    Case(PARTS, "`Prompt`, `CHOSEN`, ` rejected`", {"Prompt": ASK, "CHOSEN": "Dry it.", " rejected": "Boil it."}, READ,
         "names of columns in any case, without spaces"),
    Case(PARTS, "`Prompt` beside `prompt`", {"Prompt": "It is June.", "prompt": ASK, **PAIR},
         Aside("unread-text", "`Prompt`"), "is another column"),
    Case(PARTS, "one of two answers alone", {"prompt": ASK, "accepted": "Dry it.", "rejected": "Boil it."},
         Aside("missing-field", "no field `chosen`"), "is named"),
    Case(PARTS, "`source`, `model`, `id`, `language`, numbers", {"prompt": ASK, "id": "r1", "source": "web crawl",
         "response_model": "m1", "language": "en", "year": 2020, **PAIR}, READ, "no part of the dialogue: noted"),
    Case(PARTS, "`source` with a long text", {"prompt": "Sum it up.", "source": "The herb is green and grows in pots.",
         **PAIR}, Aside("unread-text", "`source`"), "is text, whatever its name"),
    Case(PARTS, "`nan` beside the question, as pandas writes what is missing", {"prompt": ASK, "input": "nan", **PAIR},
         READ, "adds nothing"),
    Case(PARTS, "`nan` for an answer", {"prompt": ASK, "chosen": "nan", "rejected": "Boil it."},
         Aside("null-field", "'nan'"), "is missing"),
    Case(PARTS, "a question in another template's marks", {"prompt": f"<s>[INST] {ASK} [/INST]", **PAIR},
         Aside("special-token", "'<s>'"), "is named"),
    Case(PARTS, "an answer that ends with a template's mark",
         {"prompt": ASK, "chosen": "Dry it.<|im_end|>", "rejected": "Boil it.<|im_end|>"},
         Aside("special-token", "'<|im_end|>'"), "is named"),
    Case(PARTS, "`chosen` as a list of one text", {"prompt": ASK, "chosen": ["Dry it."], "rejected": ["Boil it."]},
         READ, "the text"),
    Case(PARTS, "`chosen` or `output` as several texts", {"instruction": ASK, "output": ["Dry it.", "Boil it."]},
         Aside("ratings", "`output` holds 2 texts"), "which one is the answer?"),
    Case(PARTS, "`chat_template_kwargs`", {"prompt": ASK, "chat_template_kwargs": {"enable_thinking": False}, **PAIR},
         Aside("unread-arguments", "data.template_arguments"), "one setting holds for a run"),
    # turns
    Case(TURNS, "`history` as pairs", {"history": [["Hi.", "Hello."]], "prompt": ASK, **PAIR},
         Read(("user: Hi.", "assistant: Hello.", f"user: {ASK}"), TWO, 0), "earlier turns"),
    Case(TURNS, "`history` as objects of two", {"history": [{"question": "Hi.", "answer": "Hello."}],
         "prompt": ASK, **PAIR},
         Read(("user: Hi.", "assistant: Hello.", f"user: {ASK}"), TWO, 0), "earlier turns"),
    Case(TURNS, "`history` as other objects", {"history": [{"first": "Hi.", "then": "Hello."}], "prompt": ASK, **PAIR},
         Aside("wrong-type", "`history[0]` has no role"), "are no messages"),
    Case(TURNS, "`history` as messages, one answer", {"history": [user("Hi."), bot("Hello.")], "instruction": ASK,
         "output": "Dry it."}, Read(("user: Hi.", "assistant: Hello.", f"user: {ASK}"), ("Dry it.",)), "earlier turns"),
    Case(TURNS, "`conversation` as objects of two, the last reply the answer", {"conversation": [
         {"human": "Hi.", "assistant": "Hello."}, {"human": ASK, "assistant": "Dry it."}]},
         Read(("user: Hi.", "assistant: Hello.", f"user: {ASK}"), ("Dry it.",)), "a dialogue with its answer"),
    Case(TURNS, "`messages` with `from` and `value`", {"messages": [{"from": "human", "value": ASK},
         {"from": "gpt", "value": "Dry it."}]}, Read((f"user: {ASK}",), ("Dry it.",)), "the same"),
    Case(TURNS, "`history` as a text", {"history": "We spoke of herbs.", "prompt": ASK, **PAIR},
         Aside("unread-text", "--column context=history"), "names the column to give"),
    Case(TURNS, "`messages` beside answers in texts", {"messages": [user(ASK)], **PAIR}, READ, "the prompt"),
    Case(TURNS, "`conversations` with a pair", {"conversations": [{"from": "human", "value": ASK}], **PAIR}, READ,
         "the prompt"),
    Case(TURNS, "`messages` that end with the preferred reply, and `rejected_response`", {
         "messages": [user(ASK), bot("Dry it.")], "rejected_response": "Boil it."}, READ, "a pair"),
    Case(TURNS, "`input.messages`, `preferred_output`, `non_preferred_output`", {"input": {"messages": [user(ASK)]},
         "preferred_output": [bot("Dry it.")], "non_preferred_output": [bot("Boil it.")]}, READ, "a pair"),
    Case(TURNS, "`chosen` and `rejected` as a message each", {"messages": [user(ASK)], "chosen": bot("Dry it."),
         "rejected": bot("Boil it.")}, READ, "a pair"),
    Case(TURNS, "`messages` and `rejected_messages`, one of both with a system message", {
         "messages": [{"role": "system", "content": "Be brief."}, user(ASK), bot("Dry it.")],
         "rejected_messages": [user(ASK), bot("Boil it.")]}, Aside("different-prompts", "differ before the last reply"),
         "two prompts"),
    Case(TURNS, "`system` beside `messages` and `rejected_messages`", {"system": "Be brief.",
         "messages": [user(ASK), bot("Dry it.")], "rejected_messages": [user(ASK), bot("Boil it.")]},
         Read(("system: Be brief.", f"user: {ASK}"), TWO, 0), "the first turn of both"),
    Case(TURNS, "several turns in `chosen` and `rejected`", {
         "chosen": [user("Hi."), bot("Hello."), user(ASK), bot("Dry it.")],
         "rejected": [user("Hi."), bot("Hello."), user(ASK), bot("Boil it.")]},
         Read(("user: Hi.", "assistant: Hello.", f"user: {ASK}"), TWO, 0), "all but the last are the prompt"),
    Case(TURNS, "several turns that differ before the last", {
         "chosen": [user(ASK), bot("Dry it."), user("So?"), bot("Yes.")],
         "rejected": [user(ASK), bot("Boil it."), user("So?"), bot("No.")]},
         Aside("different-prompts", "differ before the last reply"), "two prompts"),
    Case(TURNS, "messages as a text of Python in a cell", {"chosen": repr([user(ASK), bot("Dry it.")]),
         "rejected": repr([user(ASK), bot("Boil it.")])}, READ, "as a list"),
    Case(TURNS, "messages as a text that is broken", {"prompt": ASK, "chosen": "[{'role': 'assistant', 'content",
         "rejected": "Boil it."}, Aside("wrong-type", "messages as a text"), "is named"),
    Case(TURNS, "`messages` as a text", {"messages": json.dumps(user(ASK))},
         Aside("wrong-type", "not a list of messages"),
         "is named"),
    Case(TURNS, "messages as JSON text in a cell", {"chosen": json.dumps([user(ASK), bot("Dry it.")]),
         "rejected": json.dumps([user(ASK), bot("Boil it.")])}, READ, "as a list"),
    Case(TURNS, "no prompt, transcripts with turns", {"chosen": f"User: {ASK}\nAssistant: Dry it.",
         "rejected": f"User: {ASK}\nAssistant: Boil it."}, READ, "the turns before the last reply are the prompt"),
    Case(TURNS, "no prompt, ChatML transcripts", {
         "chosen": f"<|im_start|>user\n{ASK}<|im_end|>\n<|im_start|>assistant\nDry it.<|im_end|>",
         "rejected": f"<|im_start|>user\n{ASK}<|im_end|>\n<|im_start|>assistant\nBoil it.<|im_end|>"},
         READ, "the same"),
    Case(TURNS, "no prompt, texts that begin alike", {"chosen": f"Ask: {ASK} Say: I would dry it.",
         "rejected": f"Ask: {ASK} Say: I would boil it."}, Aside("missing-field", "no field with the prompt"),
         "words that two answers share are no prompt"),
    # roles and contents
    *(
        Case(ROLES, f"roles `{asks}` and `{replies}`", {"messages": [{"role": asks, "content": ASK},
             {"role": replies, "content": "Dry it."}]}, Read((f"user: {ASK}",), ("Dry it.",)), "user and assistant")
        for asks, replies in (
            ("Human", "Assistant"), ("user", "model"), ("USER", "bot"), ("prompter", "gpt"), ("User ", " AI"),
        )
    ),
    Case(ROLES, "role `developer`", {"messages": [{"role": "developer", "content": "Be brief."}, user(ASK)]},
         Read(("system: Be brief.", f"user: {ASK}")), "a system message"),
    Case(ROLES, "another role", {"messages": [{"role": "robot", "content": ASK}]}, Aside("unknown-role", "'robot'"),
         "is named"),
    Case(ROLES, "contents in parts of text", {"messages": [user([{"type": "text", "text": "It is June."},
         {"type": "text", "text": ASK}])]},
         Read((f"user: It is June.\n{ASK}",)), "in lines, as the endpoint joins them"),
    Case(ROLES, "other parts", {"messages": [user([{"type": "text", "text": ASK},
         {"type": "image_url", "image_url": "x"}])]},
         Aside("not-text", "'image_url'"), "are refused as such"),
    Case(ROLES, "pictures in a system message's dialogue", {"messages": [
         {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
         user([{"type": "image"}, {"type": "text", "text": ASK}])]},
         Aside("not-text", "'image'"), "are refused as such"),
    Case(ROLES, "nulls that columns add",
         {"messages": [{**user(ASK), "from": None, "value": None, "tool_calls": None}]},
         Read((f"user: {ASK}",)), "say nothing"),
    Case(ROLES, "a message with more text", {"messages": [{**user(ASK), "name": "Ana"}]},
         Aside("unread-text", "`messages[0].name`"),
         "is named"),
    Case(ROLES, "a reply with `weight: 0`, `loss: false` or `train: false`",
         {"prompt": [user(ASK)], "chosen": [bot("Dry it.", weight=0)], "rejected": [bot("Boil it.")]},
         Aside("unread-label", "`chosen[0].weight`"), "is named: it is not to be learned"),
    Case(ROLES, "an earlier turn with `weight: 0`",
         {"messages": [user("Hm?"), bot("Hm.", weight=0), user(ASK), bot("Dry it.", weight=1)]},
         Read(("user: Hm?", "assistant: Hm.", f"user: {ASK}"), ("Dry it.",)), "earlier turns are not learned"),
    # again
    Case(AGAIN, "texts", {"prompt": f"Question: {ASK}", "chosen": f"Question: {ASK} Answer: Dry it.",
         "rejected": f"Question: {ASK} Answer: Boil it."},
         Read((f"user: Question: {ASK}",), ("Answer: Dry it.", "Answer: Boil it."), 0), "once, in the prompt"),
    Case(AGAIN, "one answer", {"instruction": ASK, "output": f"{ASK}\n    dry()"},
         Read((f"user: {ASK}",), ("    dry()",)), "once; the answer keeps its indentation"),
    Case(AGAIN, "in one of two answers", {"prompt": ASK, "chosen": "Dry it.", "rejected": f"{ASK} Boil it."},
         Read((f"user: {ASK}",), ("Dry it.", f"{ASK} Boil it."), 0), "is that answer's own"),
    Case(AGAIN, "fewer than three words", {"prompt": "Hi!", "chosen": "Hi! You?", "rejected": "Hi! Bye."},
         Read(("user: Hi!",), ("Hi! You?", "Hi! Bye."), 0), "may be the answer's own"),
    Case(AGAIN, "as `Q:` and `A:`", {"prompt": ASK, "chosen": f"Q: {ASK}\nA: Dry it.",
         "rejected": f"Q: {ASK}\nA: Boil it."}, READ, "the same"),
    Case(AGAIN, "in another case, or with other space", {"prompt": ASK, "chosen": f"{ASK.upper()} Dry it.",
         "rejected": f"{ASK.replace(' ', chr(10))} Boil it."}, READ, "the same"),
    Case(AGAIN, "behind the system message", {"system": "Be brief.", "prompt": ASK,
         "chosen": f"Be brief.\n{ASK}\nDry it.", "rejected": f"Be brief.\n{ASK}\nBoil it."},
         Read(("system: Be brief.", f"user: {ASK}"), TWO, 0), "the same"),
    Case(AGAIN, "transcripts", {"prompt": HH.format(ASK, "").rstrip(), "chosen": HH.format(ASK, "Dry it."),
         "rejected": HH.format(ASK, "Boil it.")}, READ, "the last reply is the answer"),
    Case(AGAIN, "a question and transcripts", {"prompt": ASK, "chosen": HH.format(ASK, "Dry it."),
         "rejected": HH.format(ASK, "Boil it.")}, READ, "the last reply is the answer"),
    Case(AGAIN, "messages", {"prompt": [user(ASK)], "chosen": [user(ASK), bot("Dry it.")],
         "rejected": [user(ASK), bot("Boil it.")]}, READ, "the last message is the answer"),
    Case(AGAIN, "a question and messages", {"prompt": ASK, "messages": [user(ASK), bot("Dry it.")]},
         Read((f"user: {ASK}",), ("Dry it.",)), "the last message is the answer"),
    Case(AGAIN, "another question before the reply", {"prompt": [user(ASK)], "chosen": [user("Hi."), bot("Dry it.")],
         "rejected": [user("Hi."), bot("Boil it.")]}, Aside("different-prompts", "another one"), "which was asked?"),
    # tools
    Case(TOOLS, "`tool_calls`", {"messages": [user(ASK), bot("Wait.", tool_calls=call("Oban"))]},
         Aside("tool-calls", "tool_calls"), "cannot be trained"),
    Case(TOOLS, "`tool_calls` without a content", {"messages": [user(ASK), bot(None, tool_calls=call("Oban"))]},
         Aside("tool-calls", "tool_calls"), "the same"),
    Case(TOOLS, "pairs that differ in their calls",
         {"prompt": [user(ASK)], "chosen": [bot("Wait.", tool_calls=call("Oban"))],
         "rejected": [bot("Wait.", tool_calls=call("Brest"))]}, Aside("tool-calls", "tool_calls"), "the same"),
    Case(TOOLS, "`tools` beside texts", {"prompt": ASK, "tools": [{"name": "tides"}], **PAIR},
         Aside("tool-calls", "`tools`"), "the same"),
    Case(TOOLS, "`tools` as JSON text", {"messages": [user(ASK), bot("Dry it.")],
         "tools": json.dumps([{"name": "tides"}])},
         Aside("tool-calls", "`tools`"), "the same"),
    Case(TOOLS, "turns of a tool", {"messages": [user(ASK), {"role": "tool", "content": "noon"}, bot("Noon.")]},
         Aside("tool-calls", "a turn of a tool"), "the same"),
    Case(TOOLS, "`reasoning_content`", {"messages": [user(ASK), bot("Dry it.", reasoning_content="It is wet.")]},
         Aside("unread-text", "`messages[1].reasoning_content`"),
         "is named: write it into the content, or take it out"),
    Case(TOOLS, "a thought in the content", {"messages": [user(ASK), bot("<think>Wet.</think>Dry it.")]},
         Read((f"user: {ASK}",), ("<think>Wet.</think>Dry it.",)), "is part of the answer"),
    # labels
    Case(LABELS, "scores as text", {"prompt": ASK, **PAIR, "score_chosen": "2", "score_rejected": "9"},
         Aside("labels-disagree", "`score_chosen` is 2 and `score_rejected` is 9"), "compared as numbers"),
    Case(LABELS, "scores as text that agree", {"prompt": ASK, **PAIR, "chosen-rating": "10", "rejected-rating": "9.5"},
         READ, "compared as numbers"),
    Case(LABELS, "equal scores", {"prompt": ASK, **PAIR, "chosen_reward": 7.5, "rejected_reward": "7.50"},
         Read((f"user: {ASK}",), TWO), "a tie, so no preference"),
    Case(LABELS, "a score that is no number", {"prompt": ASK, **PAIR, "chosen_score": "high", "rejected_score": "low"},
         Aside("wrong-type", "'high', not a number"), "is named"),
    Case(LABELS, "ratings of several answers",
         {"prompt": ASK, "completions": rated(("So.", 5), ("Boil it.", 2), ("Dry it.", 8))},
         READ, "the best and the worst are the pair; of equals the first"),
    Case(LABELS, "ratings in a list beside the answers", {"prompt": ASK, "responses": ["Boil it.", "Dry it."],
         "scores": [0.1, 0.9]}, READ, "the same"),
    Case(LABELS, "ranks", {"prompt": ASK, "completions": [{"completion": [bot("Dry it.")], "rank": 0},
         {"completion": [bot("Boil it.")], "rank": 1}]}, READ, "the lowest rank is the best"),
    Case(LABELS, "equal ratings", {"prompt": ASK, "answers": rated(("Dry it.", 3), ("Boil it.", 3), key="rating")},
         Read((f"user: {ASK}",), TWO), "a tie, so no preference"),
    Case(LABELS, "several answers without a rating", {"prompt": ASK, "answers": ["Dry it.", "Boil it."]},
         Aside("ratings", "no rating of each"), "is named"),
    Case(LABELS, "steps of one answer with labels", {"prompt": ASK, "completions": ["Cut it.", "Dry it."],
         "labels": [True, False]}, Aside("ratings", "no rating of each"), "are no answers of their own"),
    Case(LABELS, "several ratings", {"prompt": ASK, "answers": [{"answer": "Dry it.", "helpful": 1, "correctness": 2},
         {"answer": "Boil it.", "helpful": 2, "correctness": 1}]},
         Aside("ratings", "all but one"), "which one counts?"),
    Case(LABELS, "Argilla: a question of any name", {"fields": {"prompt": ASK, **SIDES},
         "responses": {"which": vote("A is better")}},
         READ, "who chose which"),
    Case(LABELS, "Argilla: `first`, `second`", {"fields": {"prompt": ASK, **SIDES},
         "responses": {"choice": vote("first")}},
         READ, "who chose which"),
    Case(LABELS, "Argilla: values of each person", {"fields": {"prompt": ASK, **SIDES}, "responses": [
         {"status": "submitted", "values": {"best": {"value": "response_a"}}}]}, READ, "who chose which"),
    Case(LABELS, "Argilla: a ranking", {"fields": {"prompt": ASK, **SIDES}, "responses": {"ranking": vote([
         {"value": "response_b", "rank": 2}, {"value": "response_a", "rank": 1}])}}, READ, "the first is chosen"),
    Case(LABELS, "Argilla: a ranking of equals", {"fields": {"prompt": ASK, **SIDES}, "responses": {"ranking": vote([
         {"value": "response_b", "rank": 1}, {"value": "response_a", "rank": 1}])}}, Read((f"user: {ASK}",), TWO),
         "a tie, so no preference"),
    Case(LABELS, "Argilla: an answer that chooses none", {"fields": {"prompt": ASK, **SIDES},
         "responses": {"which": vote("fine")}},
         Aside("unread-label", "answers to `which` would be lost"), "is named"),
    Case(LABELS, "Argilla: a field of another name", {"fields": {"prompt": ASK, "passage": "It is June.", **SIDES},
         "responses": {"which": vote("a")}}, Aside("unread-text", "`passage`"), "is named"),
    Case(LABELS, "two answers and a `winner`", {"prompt": ASK, **SIDES, "winner": "model_a"}, READ, "who won"),
    Case(LABELS, "two answers and a column that names one otherwise", {"prompt": ASK, **SIDES, "seen_before": "left"},
         Aside("unread-text", "`seen_before`"), "is named: no choice"),
    Case(LABELS, "Argilla: a model's suggestion alone", {"prompt": ASK, **SIDES, "which.suggestion": "response_a"},
         Aside("unread-text", "`which.suggestion`"), "is named: no person's choice"),
    Case(LABELS, "Label Studio: `JSON_MIN` and CSV", {"prompt": ASK, "answer1": "Dry it.", "answer2": "Boil it.",
         "comparison": "left", "annotator": 1, "annotation_id": 7}, READ, "who chose which"),
    Case(LABELS, "Label Studio: `JSON_MIN` without what was said",
         {"text_1": "Dry it.", "text_2": "Boil it.", "annotator": 1,
         "prompt": ASK}, Aside("unread-text", "`text_1`, `text_2`"), "the answers are named"),
    Case(LABELS, "Label Studio: choices", {"data": {"prompt": ASK, "answer1": "Dry it.", "answer2": "Boil it."},
         "annotations": [{"result": [{"type": "choices", "value": {"choices": ["answer1"]}}]}]},
         READ, "who chose which"),
    # white space
    Case(SPACE, "indented answers", {"prompt": ASK, "chosen": "    total += x\n", "rejected": "    total = x\n"},
         Read((f"user: {ASK}",), ("    total += x\n", "    total = x\n"), 0), "stay as they are"),
    Case(SPACE, "answers that differ in indentation alone", {"prompt": ASK, "chosen": "    break", "rejected": "break"},
         Read((f"user: {ASK}",), ("    break", "break"), 0), "are two answers"),
    Case(SPACE, "answers that differ in white space at their ends alone", {"prompt": ASK, "chosen": "Dry it.",
         "rejected": "Dry it. \n"}, Aside("equal-responses", "the same text"), "are one answer"),
)  # fmt: skip


def page() -> str:
    """The table as docs/reader.md shows it."""
    lines = [PAGE]
    for group in dict.fromkeys(case.group for case in CASES):
        lines += [f"## {group}\n", "| in the row | what becomes of it |", "|---|---|"]
        for case in (case for case in CASES if case.group == group):
            aside = f"set aside, `{case.right.kind}`: " if isinstance(case.right, Aside) else "read: "
            lines.append(f"| {case.what} | {aside}{case.does} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
