"""A run as version 0.2.0 stored it, with labels of single answers in a table of their own."""

from __future__ import annotations

from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from pddpo_ray.journal import Journal, read_journal
from pddpo_ray.journal.database import HEAD, known_revision, open_database
from pddpo_ray.journal.schema import metadata
from pddpo_ray.records import CostEstimate, Measurement, Prompt, Response, SafetyLabels, Verdict

ANSWERS = [Response(name, Prompt("p", (1,), "p"), (index,), name, 0, 7, None) for index, name in enumerate("ab")]
STEP = CostEstimate(0.1, 1 / 7, 2, 2)
LABELS = """
    CREATE TABLE safety_label (
        run VARCHAR(200) NOT NULL, sample VARCHAR(200) NOT NULL, "constraint" VARCHAR(100) NOT NULL,
        source INTEGER NOT NULL, round INTEGER NOT NULL, position INTEGER NOT NULL, policy_version INTEGER NOT NULL,
        labeller VARCHAR(200) NOT NULL, label VARCHAR(20) NOT NULL, PRIMARY KEY (run, sample, "constraint", source),
        FOREIGN KEY (run, sample) REFERENCES sample (run, id))
"""
ROW = """
    INSERT INTO safety_label VALUES
    ('run', :sample, 'cost', :source, 1, :position, 0, 'people', :label)
"""
GIVEN = [("b", 0, 0, "unsafe"), ("b", 1, 0, "missing"), ("a", 0, 1, "safe"), ("a", 1, 1, "failed")]


def begun_by_0_2(where: str | Path) -> None:
    """A run with two labelled answers and a step of its multiplier, in the tables of 0.2.0."""
    with Journal.open(where, "run", create={"algorithm": "x"}) as journal:
        for _ in journal.rounds(1):
            journal.add_samples("cost", ANSWERS)
            journal.add_dual_step("cost", STEP, 1.0, 1.25, 0.1)
        with journal.engine.begin() as connection:
            for change in (
                "DROP TABLE measurement",
                LABELS,
                "ALTER TABLE dual_step ADD COLUMN bias_allowance FLOAT NOT NULL DEFAULT 0",
                "ALTER TABLE dual_step DROP COLUMN low",
                "ALTER TABLE dual_step DROP COLUMN high",
                "UPDATE alembic_version SET version_num = '0015'",
            ):
                connection.execute(text(change))
            names = ("sample", "source", "position", "label")
            connection.execute(text(ROW), [dict(zip(names, row, strict=True)) for row in GIVEN])


def demand_its_labels(where: str | Path) -> None:
    """Opens it as a driver does: its tables are today's, and every label is a measurement of the run."""
    engine = open_database(where)
    assert known_revision(engine) == HEAD
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    assert not inspect(engine).has_table("safety_label")
    engine.dispose()
    with read_journal(where, "run") as journal:
        assert journal.measurements(1, "safety") == [
            Measurement("cost", "b", 1.0, "", "people", 0),
            Measurement("cost", "b", None, "missing", "people", 1),
            Measurement("cost", "a", 0.0, "", "people", 0),
            Measurement("cost", "a", None, "failed", "people", 1),
        ]
        assert journal.safety(1) == [
            SafetyLabels(ANSWERS[1], (Verdict.UNSAFE, Verdict.MISSING)),
            SafetyLabels(ANSWERS[0], (Verdict.SAFE, Verdict.FAILED)),
        ]
        (step,) = journal.dual_steps()
        assert (step.estimate, step.multiplier_after) == (STEP, 1.25)
