"""Writes docs/recipes.md from what each shipped recipe says of itself.

python -m tests.support.recipes_page > docs/recipes.md
"""

from __future__ import annotations

from pddpo_ray.config import load, recipe_names

HEAD = """# Recipes

What ships, as `pddpo recipes` prints it; `pddpo recipes NAME` shows one with every setting. Recipes under `gpu/` were
planned for 7B models and never run; those under `paper/` have the published values. [Methods](methods.md) says what
each method assumes.

| recipe | what it runs |
|---|---|
"""
FOOT = "\nSymbols and words: [glossary](glossary.md).\n"


def page() -> str:
    """docs/recipes.md."""
    rows = [f"| `{name}` | {load(name, check_files=False).about} |" for name in recipe_names()]
    return HEAD + "\n".join(rows) + "\n" + FOOT


if __name__ == "__main__":
    print(page(), end="")
