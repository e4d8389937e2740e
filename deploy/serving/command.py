"""`pddpo serve`: the policies of a run behind an OpenAI-compatible endpoint, and the keys to it."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.web.listening import BehindProxy, Host, refuse_open_network
from pddpo_ray.cli.output import milliseconds, print_columns, print_json
from pddpo_ray.cli.runs.recipe_of_run import FoundRun, find_run
from pddpo_ray.errors import UserError

if TYPE_CHECKING:
    from pddpo_ray.serving.keys import ApiKey, ApiKeys


def serve(
    run: Annotated[Path, typer.Argument(help="Run folder; the run may still be in progress.", metavar="RUN")],
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8800,
    behind_proxy: BehindProxy = False,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate of this server (PEM): it speaks https.", metavar="FILE")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's key (PEM).", metavar="FILE")] = None,
    weights: Annotated[
        str, typer.Option(help="merged, adapters, or auto: adapters for a LoRA run on a GPU, else merged.")
    ] = "auto",
    other_decoding: Annotated[
        str, typer.Option(help="Requests that decode otherwise than was certified: mark (answer, marked) or refuse.")
    ] = "mark",
    engines: Annotated[int, typer.Option(min=1, help="Engine replicas.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of each engine; 0: the CPU engine.")] = 0.0,
    tensor_parallel: Annotated[
        int, typer.Option(min=1, help="GPUs that one engine is spread over; --gpus says as many.")
    ] = 1,
    mixture: Annotated[
        int | None, typer.Option(min=1, help="Number of last rounds from which the mixture draws.", metavar="ROUNDS")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the mixture's draws.")] = 0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of one answer.")] = None,
    chat_template: Annotated[
        Path | None, typer.Option(help="A chat template (Jinja) in place of the run's.", metavar="FILE")
    ] = None,
    cors: Annotated[list[str] | None, typer.Option(help="A web origin whose pages may call.", metavar="ORIGIN")] = None,
    measure: Annotated[
        str,
        typer.Option(help="Share of answers that the limits' sources measure, e.g. 5%; an alarm takes a release back."),
    ] = "0",
    webhook: Annotated[str | None, typer.Option(help="Where an alarm is told, as JSON.", metavar="URL")] = None,
    traces: Annotated[
        str | None, typer.Option(help="An OpenTelemetry collector: http://HOST:4318/v1/traces.", metavar="URL")
    ] = None,
    keep: Annotated[
        str,
        typer.Option(help="Keep prompts for the run's next rounds with consent: off, request (each says so) or key."),
    ] = "off",
    keep_per_key: Annotated[int, typer.Option(min=1, help="With --keep: the most prompts of one key.")] = 200,
    keep_total: Annotated[int, typer.Option(min=1, help="With --keep: the most prompts of all.")] = 2000,
    scrub: Annotated[
        Path | None, typer.Option(help="With --keep: rules for what is taken out first (YAML).", metavar="FILE")
    ] = None,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Write prompts and answers to the log.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log files with a JSON object per line.")] = False,
    address: Annotated[
        str | None, typer.Option(help="A running Ray cluster; without it, a session of this machine.")
    ] = None,
    route: Annotated[
        str, typer.Option(help="Path before /v1, where several runs share a cluster's port.", metavar="PATH")
    ] = "/",
    journal: Annotated[str | None, typer.Option(help="Database URL, where the recipe names one.")] = None,
    add_key: Annotated[str | None, typer.Option(help="Make an API key, print it and end.", metavar="NAME")] = None,
    scope: Annotated[
        str, typer.Option(help="Of the new key: chat (released, mixture), inspect (every policy) or admin.")
    ] = "chat",
    requests_per_minute: Annotated[float, typer.Option(min=0.001, help="Limit of the new key.")] = 600.0,
    tokens_per_minute: Annotated[float, typer.Option(min=1, help="Limit of the new key.")] = 200_000.0,
    expires: Annotated[
        str | None, typer.Option(help="The new key ends by itself after this time, e.g. 90d.", metavar="TIME")
    ] = None,
    consented: Annotated[
        bool,
        typer.Option("--consented", help="The new key's holders agreed that training learns from it (--keep key)."),
    ] = False,
    rotate_key: Annotated[
        str | None, typer.Option(help="Give an API key a new secret, print it and end.", metavar="NAME")
    ] = None,
    grace: Annotated[str, typer.Option(help="How long the old secret is still good, e.g. 1h.", metavar="TIME")] = "24h",
    revoke_key: Annotated[str | None, typer.Option(help="End an API key.", metavar="NAME")] = None,
    list_keys: Annotated[bool, typer.Option("--list-keys", help="Print the valid keys, without secrets.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With an option about keys: print one JSON object.")] = False,
) -> None:
    """Serve a run's policies to any OpenAI client.

    Their names as models: mixture, released, round-k and reference.
    """
    run = run.expanduser().absolute()
    tls = _tls(tls_cert, tls_key)
    refuse_open_network(host, behind_proxy or tls is not None, "keys", own_https="give --tls-cert and --tls-key, ")
    if weights not in ("auto", "merged", "adapters"):
        raise UserError(f"--weights {weights}: choose auto, merged or adapters")
    if keep not in ("off", "request", "key"):
        raise UserError(f"--keep {keep}: choose off, request or key")
    if other_decoding not in ("mark", "refuse"):
        raise UserError(f"--other-decoding {other_decoding}: choose mark or refuse")
    if not route.startswith("/"):
        raise UserError(f"--route {route}: write a path, e.g. /{run.name}")
    keys = _keys(find_run(run, journal))
    if add_key is not None:
        lasts = None if expires is None else milliseconds("--expires", expires)
        _add(keys, add_key, scope, requests_per_minute, tokens_per_minute, lasts, as_json, consented=consented)
        return
    if rotate_key is not None:
        _print(*keys.rotate(rotate_key, milliseconds("--grace", grace)), as_json)
        return
    if list_keys:
        _list(keys, as_json)
        return
    if revoke_key is not None:
        keys.revoke(revoke_key)
        typer.echo(f"{revoke_key} is revoked")
        return
    files = keys.first(run)
    settings: dict[str, Any] = {"run": str(run), "journal": journal, "weights": weights, "engines": engines}
    settings |= {"measure": share_of(measure), "webhook": webhook, "traces": traces}
    settings |= {"keep": keep, "keep_per_key": keep_per_key, "keep_total": keep_total}
    settings |= {"scrub": _rules(scrub)}
    settings |= {"other_decoding": other_decoding, "tensor_parallel": tensor_parallel}
    settings |= {"gpus": gpus, "mixture_max": mixture, "seed": seed, "max_tokens": max_tokens, "log_texts": log_texts}
    settings |= {"log_json": log_json}
    settings |= {"cors_origins": tuple(cors or ()), "chat_template": str(chat_template) if chat_template else None}
    typer.echo(f"starting (vLLM takes a minute); API key: {files['inspect']}, admin key: {files['admin']}")
    # Imported here: Ray Serve takes seconds to load, and keys are made without it.
    from deploy.serving.deployment import serve_forever
    from deploy.serving.settings import ServeArgs
    from deploy.serving.tracing import checked_address

    if traces is not None:
        checked_address(traces)
    serve_forever(ServeArgs(**settings), host=host, port=port, address=address, route=route, tls=tls)


def _tls(certificate: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    """Both files, or None. Raises UserError where they are not a pair that a server can speak https with."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UserError("--tls-cert and --tls-key belong together: give both, or neither")
    import ssl

    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, password="")
    except OSError as error:  # a file that is missing, no PEM, a key of another certificate or under a password
        raise UserError(f"--tls-cert {certificate}, --tls-key {key}: {error.strerror or error}") from error
    return certificate.absolute(), key.absolute()


def share_of(text: str) -> float:
    """`5%`, `5 %` or `0.05`. Raises UserError."""
    try:
        number = float(text.rstrip(" %")) / (100 if text.rstrip().endswith("%") else 1)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise UserError(f"--measure {text}: write a share from 0 to 1 or a percentage, e.g. 5%")
    return number


def _rules(scrub: Path | None) -> str | None:
    """Path of the file of rules. Raises UserError for a wrong file before anything is started."""
    if scrub is None:
        return None
    from pddpo_ray.serving.scrubbing import scrubber

    scrubber(scrub)
    return str(scrub.absolute())


def _keys(stored: FoundRun) -> ApiKeys:
    from pddpo_ray.journal.database import open_database
    from pddpo_ray.journal.transactions import Store
    from pddpo_ray.serving.keys import ApiKeys

    return ApiKeys(Store(open_database(stored.database), stored.id))


def _add(
    keys: ApiKeys,
    name: str,
    scope: str,
    requests: float,
    tokens: float,
    lasts_ms: int | None,
    as_json: bool,
    *,
    consented: bool,
) -> None:
    from pddpo_ray.serving.keys import Scope

    if scope not in list(Scope):
        raise UserError(f"--scope {scope}: choose {', '.join(Scope)}")
    limits: dict[str, Any] = {"requests_per_minute": requests, "tokens_per_minute": tokens, "lasts_ms": lasts_ms}
    limits |= {"consented": consented}
    _print(*keys.create(name, Scope(scope), **limits), as_json)


def _print(key: ApiKey, secret: str, as_json: bool) -> None:
    if as_json:
        print_json({"name": key.name, "scope": key.scope.value, "key": secret, "expires_ms": key.expires_ms})
    else:
        typer.echo(f"{key.name} ({key.scope.value}) uses this key, which is shown only now:\n{secret}")


def _list(keys: ApiKeys, as_json: bool) -> None:
    valid = list(keys.valid().values())
    if as_json:
        print_json({"keys": [{**asdict(key), "scope": key.scope.value} for key in valid]})
        return
    print_columns([_line(key) for key in valid])


def _line(key: ApiKey) -> tuple[str, ...]:
    rates = f"{key.requests_per_minute:g} requests and {key.tokens_per_minute:g} tokens a minute"
    ends = "does not end"
    if key.expires_ms is not None:
        ends = time.strftime("ends %Y-%m-%d %H:%M", time.localtime(key.expires_ms / 1000))
    agreed = "consented" if key.consented else ""
    return key.name, key.scope.value, f"{key.prefix}…", rates, ends, agreed
