"""What `pddpo evaluate` prints about models and a file of questions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pddpo_ray.cli.main import main
from tests.support.tiny_language_model import save_policy


@pytest.mark.run
def test_a_line_per_model_has_every_measure_with_its_interval_or_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [str(save_policy(tmp_path / name, seed)) for seed, name in enumerate(("base", "other"))]
    questions = tmp_path / "asked.jsonl"
    questions.write_text("".join(json.dumps({"prompt": f"word{number} word2 ?"}) + "\n" for number in range(6)))
    options = ["--set", str(questions), "--max-tokens", "4", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", *models, *options])
    assert not ended.value.code
    printed = capsys.readouterr().out.splitlines()
    heads, base, other = printed[printed.index("asked: 6 questions, 0 pairs") + 1 :][:3]
    assert heads.split() == ["length_tokens", "length_words", "refusal", "kl"]
    cells = {line.split()[0]: line.split(maxsplit=1)[1].split("  ") for line in (base, other)}
    no_refusal = f"0 [0, {1 - 0.025 ** (1 / 6):.4g}]"  # exact interval of 0 of 6
    assert [[cell.strip() for cell in line if cell.strip()][-2] for line in cells.values()] == [no_refusal] * 2
    assert base.endswith("-"), "the reference has no distance to itself"
    with pytest.raises(SystemExit):
        main(["evaluate", *models, *options, "--json"])
    kl = json.loads(capsys.readouterr().out)["sets"]["asked"]["measures"]["other"]["kl"]
    assert other.endswith(f"{kl['value']:.4g} (error {kl['standard_error']:.4g})")
