"""In which language a question is, among those that a recipe names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pddpo_ray.errors import UserError

LanguageOf = Callable[[str], str | None]


def recogniser(codes: Sequence[str]) -> LanguageOf:
    """The language of a prompt among `codes`; None where it has no letters. Raises UserError for unknown codes."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise UserError("people.languages needs py3langid: pip install py3langid") from error
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE)
    try:
        identifier.set_languages(list(codes))
    except ValueError as error:
        raise UserError(f"people.languages: {', '.join(codes)}: {error}") from error
    return lambda text: str(identifier.classify(text)[0]) if any(map(str.isalpha, text)) else None
