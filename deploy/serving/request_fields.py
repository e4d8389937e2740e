"""Every field of a request: whether it changes the answer, and what the endpoint does with it.

The one table. Requests are read by it (`read`), a certificate that does not hold names what it says (`departure`), and
it is the page docs/request-fields.md:

    python -m deploy.serving.request_fields > docs/request-fields.md

A field that is not in it is refused: to ignore what would change an answer is to answer another question.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from deploy.web.http_errors import ApiError

Kind = Literal["chat", "completion"]
Effect = Literal["refused", "no certificate", "harmless"]
Form = Literal["truth", "whole", "number"]

ROUTES: Mapping[Kind, str] = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}
SHOWN_MAX = 60
"""Characters of a value that a header or an error repeats."""
ANSWERS_MAX = 8
LOGPROBS_MAX = 20
INT32, INT64 = 2**31, 2**63

_truth: TypeAdapter[bool] = TypeAdapter(bool)


@dataclass(frozen=True)
class RequestField:
    """One field of one or both kinds of requests. null is the same as leaving it out."""

    name: str
    effect: Effect
    why: str
    """What it does to an answer or to a reply, for the page and for the refusal."""
    plain: tuple[Any, ...] = ()
    """Values under which the answer is the one that was tested."""
    form: Form | None = None
    """How its value is read, as the engine reads it; None: the engine checks it, or nobody needs it."""
    least: float = -math.inf
    most: float = math.inf
    only: Kind | None = None
    tested: str | None = None
    """The name in a decoding whose value, and no other, is the tested one."""
    sent: bool = True
    """Whether the engine gets it, unless it is refused."""
    shown: bool = True
    """Whether its value may be repeated: a prompt never is."""

    def read(self, value: Any) -> Any:
        """The value as the engine's own request model would have it. Raises ApiError 400."""
        if self.form is None:
            return value
        if self.form == "truth":
            try:
                return _truth.validate_python(value)
            except ValidationError:
                raise ApiError(400, f"{self.name} must be true or false, not {shortened(value)}") from None
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not self.least <= value <= self.most or (self.form == "whole" and value != int(value)):
            raise ApiError(400, f"{self.name} must be {self._number_range}, not {shortened(value)}")
        return int(value) if self.form == "whole" else float(value)

    @property
    def _number_range(self) -> str:
        words = "a whole number" if self.form == "whole" else "a number"
        if math.isfinite(self.least) and math.isfinite(self.most):
            return f"{words} from {self.least:.0f} to {self.most:.0f}"
        return f"{words}, at least {self.least:.0f}" if math.isfinite(self.least) else words


def _refused(name: str, why: str, *plain: Any, form: Form | None = None, only: Kind | None = None) -> RequestField:
    return RequestField(name, "refused", why, plain, form, only=only)


def _bends(name: str, why: str, *plain: Any, **more: Any) -> RequestField:
    return RequestField(name, "no certificate", why, plain, **more)


def _harmless(name: str, why: str, **more: Any) -> RequestField:
    return RequestField(name, "harmless", why, **more)


LENGTH = "another length than was tested; above the most that is given here it is cut to that, and the reply says so"
TEMPLATE = "what the chat template writes would not be what was tested"
TOOLS = "the model was tested without tools"
RENDERED = "it is about vLLM's render routes, which are not here"
NO_MEDIA = "this model reads text alone"

TABLE: tuple[RequestField, ...] = (
    # what is asked
    _harmless("model", "it names the policy that answers, whose own certificate the reply carries"),
    _harmless("messages", "the conversation itself; what in it carries no certificate is listed below", only="chat"),
    _bends("prompt", "a prompt without the chat template", only="completion", shown=False),
    # how tokens are drawn
    _bends("temperature", "another temperature than was tested", form="number", tested="temperature"),
    _bends("max_tokens", LENGTH, form="whole", tested="max_tokens"),
    _bends("max_completion_tokens", LENGTH, form="whole", tested="max_tokens", only="chat"),
    _bends("top_p", "it cuts unlikely tokens off", 1.0, form="number"),
    _bends("top_k", "it cuts unlikely tokens off", -1, 0, form="whole", least=-1, most=INT32 - 1),
    _bends("min_p", "it cuts unlikely tokens off", 0.0, form="number"),
    _bends("frequency_penalty", "it bends the chances of tokens", 0.0, form="number"),
    _bends("presence_penalty", "it bends the chances of tokens", 0.0, form="number"),
    _bends("repetition_penalty", "it bends the chances of tokens", 1.0, form="number"),
    _bends("logit_bias", "it bends the chances of tokens", {}),
    _bends("seed", "the same seed gives the same answer, so who tries many picks one", form="whole", least=-INT64,
           most=INT64 - 1),
    _bends("n", "a user who gets several answers picks one", 1, form="whole", least=1, most=ANSWERS_MAX),
    _bends("min_tokens", "the answer may not end where the model ends it", 0, form="whole", least=0),
    _bends("ignore_eos", "the answer does not end where the model ends it", False, form="truth"),
    _bends("stop", "the answer ends elsewhere", [], ""),
    _bends("stop_token_ids", "the answer ends elsewhere", []),
    _bends("response_format", "a grammar forbids tokens", {"type": "text"}),
    _refused("structured_outputs", "a grammar forbids tokens; response_format is served"),
    _refused("bad_words", "it forbids tokens; logit_bias is served", []),
    _refused("allowed_token_ids", "it forbids tokens; logit_bias is served", []),
    _refused("repetition_detection", "the answer would end elsewhere"),
    _refused("thinking_token_budget", "thoughts would end elsewhere", -1, form="whole"),
    _refused("use_beam_search", "a search is no draw from the policy", False, form="truth"),
    _refused("length_penalty", "it is a beam search's", 1.0, form="number"),
    _refused("best_of", "the best of several is no draw from the policy", 1, form="whole"),
    _refused("watermarking", "it bends the chances of tokens", False, form="truth"),
    _refused("vllm_xargs", "arguments of extensions, of which there are none", {}),
    _refused("kv_transfer_params", "the answer would begin from somebody else's cache", {}),
    _refused("ec_transfer_params", "the answer would begin from somebody else's cache", {}),
    # what becomes of the prompt
    _refused("chat_template", TEMPLATE, "", only="chat"),
    _refused("chat_template_kwargs", TEMPLATE, {}, only="chat"),
    _refused("reasoning_effort", TEMPLATE, only="chat"),
    _refused("add_generation_prompt", TEMPLATE, True, form="truth", only="chat"),
    _refused("continue_final_message", "the client would write the beginning of the answer", False, form="truth",
             only="chat"),
    _refused("documents", TEMPLATE, [], only="chat"),
    _refused("add_special_tokens", "the prompt would begin twice", False, form="truth", only="chat"),
    _refused("add_special_tokens", "token ids leave it open how a prompt begins", True, form="truth",
             only="completion"),
    _refused("truncate_prompt_tokens", "the answer would be to a piece of the prompt"),
    _refused("truncation_side", "the answer would be to a piece of the prompt"),
    _refused("suffix", "the model was not tested on gaps", "", only="completion"),
    _refused("prompt_embeds", NO_MEDIA, [], only="completion"),
    _refused("media_io_kwargs", NO_MEDIA, {}, only="chat"),
    _refused("mm_processor_kwargs", NO_MEDIA, {}, only="chat"),
    _refused("audio", NO_MEDIA, {}, only="chat"),
    _refused("modalities", NO_MEDIA, ["text"], [], only="chat"),
    _refused("tools", f"{TOOLS}; with tool_choice none they are left out", [], only="chat"),
    _refused("tool_choice", TOOLS, "none", only="chat"),
    _refused("functions", TOOLS, [], only="chat"),
    _refused("function_call", TOOLS, "none", only="chat"),
    # what the text of the answer is
    _bends("echo", "the prompt stands before the answer", False, form="truth", only="completion"),
    _refused("echo", "the last message would stand before the answer", False, form="truth", only="chat"),
    _bends("include_stop_str_in_output", "the text has the stop as well", False, form="truth"),
    _bends("skip_special_tokens", "the text has control tokens as well", True, form="truth"),
    _bends("spaces_between_special_tokens", "the text has other spaces", True, form="truth"),
    # what the reply says besides
    _harmless("stream", "the same answer in pieces", form="truth"),
    _harmless("stream_options", "which events count tokens", sent=False),
    _harmless("stream_interval", "every token is sent as it comes", sent=False),
    _harmless("logprobs", "log-probabilities besides", form="truth", only="chat"),
    _harmless("logprobs", "log-probabilities besides", form="whole", least=0, most=LOGPROBS_MAX, only="completion"),
    _harmless("top_logprobs", "log-probabilities besides", form="whole", least=0, most=LOGPROBS_MAX, only="chat"),
    _harmless("prompt_logprobs", "log-probabilities besides", form="whole", least=0, most=LOGPROBS_MAX),
    _refused("logprob_token_ids", "logprobs are served", []),
    _harmless("return_tokens_as_token_ids", "token ids besides", form="truth"),
    _harmless("return_token_ids", "token ids besides", form="truth"),
    _harmless("return_prompt_text", "the rendered prompt besides", form="truth", only="chat"),
    _harmless("return_token_offsets", RENDERED, sent=False),
    _harmless("mm_payload", RENDERED, sent=False),
    _harmless("return_mm_kwargs", RENDERED, sent=False),
    _harmless("routed_experts_prompt_start", "nothing of experts is given out", sent=False),
    _harmless("include_reasoning", "thoughts are a part of the answer here", sent=False, only="chat"),
    _harmless("parallel_tool_calls", TOOLS, sent=False, only="chat"),
    # who asks, and how it is handled
    _harmless("user", "whom the application names, so that it can be withdrawn"),
    _harmless("conversation_id", "what a mixture's round is drawn by, under a secret key", sent=False),
    _harmless("cache_salt", "keeps the prompt's cache apart from others'"),
    _harmless("request_id", "the endpoint names its replies itself", sent=False),
    _harmless("session_id", "names a conversation to routers, of which there are none", sent=False),
    _refused("priority", "requests are answered in turn", 0, form="whole"),
    _harmless("metadata", "OpenAI's, for its own records", sent=False),
    _harmless("store", "OpenAI's; what is kept here is said by x-pddpo-training", sent=False),
    _harmless("service_tier", "OpenAI's prices", sent=False),
    _harmless("safety_identifier", "OpenAI's, for its own records", sent=False),
    _harmless("prompt_cache_key", "OpenAI's cache", sent=False),
    _harmless("prompt_cache_retention", "OpenAI's cache", sent=False),
)  # fmt: skip
FIELDS: Mapping[Kind, Mapping[str, RequestField]] = {
    kind: {field.name: field for field in TABLE if field.only in (None, kind)} for kind in ROUTES
}


def read(kind: Kind, body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request that the engine gets, read as it reads them. Raises ApiError 400 naming a field."""
    fields = {}
    for name, value in body.items():
        if value is None:
            continue
        field = FIELDS[kind].get(name)
        if field is None:
            raise ApiError(400, f"{name[:SHOWN_MAX]} is not a field of {ROUTES[kind]} here: leave it out")
        value = field.read(value)
        if field.effect == "refused" and value not in field.plain:
            raise ApiError(400, f"{name} is not supported by this endpoint ({field.why}): leave it out")
        if field.effect != "refused" and field.sent:
            fields[name] = value
    return fields


def departure(kind: Kind, fields: Mapping[str, Any], decoding: Mapping[str, Any]) -> str | None:
    """The first field of what `read` gave that makes another answer than this decoding, in ASCII; None: there is none.

    decoding: temperature and max_tokens as they were tested.
    """
    for name, value in fields.items():
        field = FIELDS[kind][name]
        plain = field.plain if field.tested is None else (decoding[field.tested],)
        if field.effect == "no certificate" and value not in plain:
            return f"{name}={shortened(value)}" if field.shown else field.why
    return None


def shortened(value: Any) -> str:
    """A value as JSON of a header's length, in ASCII."""
    text = json.dumps(value)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def fields_page() -> str:
    """docs/request-fields.md."""
    rows = []
    for field in sorted(TABLE, key=lambda field: (field.name, field.only or "")):
        route = "both" if field.only is None else ROUTES[field.only].removeprefix("/v1/")
        plain = "as tested" if field.tested else ", ".join(f"`{json.dumps(value)}`" for value in field.plain)
        effect = field.effect if field.sent or field.effect == "refused" else "harmless, not passed on"
        rows.append(f"| `{field.name}` | {route} | {effect} | {plain} | {field.why} |")
    return PAGE.format(rows="\n".join(rows))


PAGE = """# Fields of a request

A certificate is about answers that are drawn as they were tested. So every field that the endpoint's vLLM knows, and
OpenAI's besides, is one of three things; a test takes the list from vLLM's own request models.

- **refused**: 400, which names the field.
- **no certificate**: it is done, and the reply's certificate is `none` with the field as the reason. The answer is not
  measured for the [alarm](serving.md#after-a-release) and not kept for training. With `--other-decoding refuse` it is
  400 where the policy is certified.
- **harmless**: the answer is the same with it.

A field that is not in the table is refused. `null` is the same as leaving a field out. Under a value that is *allowed*
a refused field counts as left out, and an answer keeps its certificate. Truth values are read as vLLM reads them: `1`,
`"true"`, `"yes"` and `"on"` are true. Written by `python -m deploy.serving.request_fields` from the table by which
requests are read.

## In `messages`

| what | is |
|---|---|
| `role` | system, user, assistant, tool; developer is taken as system; others are refused |
| `content` | a text, or parts of type text, which are joined by new lines; other parts are refused |
| a last message that is not the user's | no certificate: it begins the answer, or leaves nothing to answer |
| role tool; `tool_calls`, `name` or any other field that is not empty | no certificate |
| a text with a control token of the model, such as the end of a turn | no certificate: it begins or ends a turn |
| a prompt that leaves less room for the answer than was tested | no certificate |

## The table

| field | route | is | allowed | because |
|---|---|---|---|---|
{rows}
"""


if __name__ == "__main__":
    print(fields_page(), end="")
