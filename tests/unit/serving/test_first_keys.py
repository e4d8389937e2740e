"""An endpoint that a Serve config file or a RayService begins has keys, though nobody called `pddpo serve`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from deploy.serving.app import create_app
from deploy.serving.settings import ServeArgs
from pddpo_ray.journal.tokens import hashed
from pddpo_ray.journal.transactions import Store
from pddpo_ray.serving import keys
from pddpo_ray.serving.keys import ApiKeys
from tests.support.served_run import SAFE, make_run
from tests.unit.serving.test_app import Echo

FILES = ("serve-key", "serve-admin-key")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own, while its module is imported
def test_the_first_start_makes_keys_and_further_starts_keep_them(tmp_path: Path) -> None:
    deployment = pytest.importorskip("deploy.serving.deployment")
    run = make_run(tmp_path / "demo", (SAFE,))
    args = ServeArgs(run=str(run.folder))
    state = deployment.entrance_state(args, Echo())
    kept = [(run.folder / name).read_text("utf-8") for name in FILES]
    inspect, admin = (text.strip() for text in kept)
    client = TestClient(create_app(state))

    def status(route: str, key: str) -> int:
        return int(client.get(route, headers={"authorization": f"Bearer {key}"} if key else {}).status_code)

    assert [status("/v1/models", key) for key in ("", "wrong", inspect, admin)] == [401, 401, 200, 200]
    assert [status("/metrics", inspect), status("/admin/releases", inspect)] == [200, 403]
    assert status("/admin/releases", admin) == 200
    assert {(run.folder / name).stat().st_mode & 0o777 for name in FILES} == {0o600}

    again = deployment.entrance_state(args, Echo())
    assert [(run.folder / name).read_text("utf-8") for name in FILES] == kept
    assert len(ApiKeys(again.store).valid()) == len(FILES)
    for one in (state, again):
        one.store.engine.dispose()
    run.close()


class Killed(BaseException):
    """The process ends here."""


def test_a_start_that_is_killed_while_it_makes_keys_leaves_none_that_nobody_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "demo", (SAFE,))
    made = ApiKeys(Store(run.journal.engine, run.journal.run_id))

    def killed(path: Path, text: str) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(keys, "write_secret", killed)
        with pytest.raises(Killed):
            made.first(run.folder)
    assert made.valid() == {}
    files = made.first(run.folder)
    assert {hashed(file.read_text("utf-8").strip()) for file in files.values()} == set(made.valid())
    run.close()


def test_of_several_that_start_at_once_one_makes_the_keys(tmp_path: Path) -> None:
    run = make_run(tmp_path / "demo", (SAFE,))
    starts = threading.Barrier(8)

    def begins() -> None:
        made = ApiKeys(Store(run.journal.engine, run.journal.run_id))
        starts.wait(60)
        made.first(run.folder)

    threads = [threading.Thread(target=begins) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    known = ApiKeys(Store(run.journal.engine, run.journal.run_id)).valid()
    assert {hashed((run.folder / name).read_text("utf-8").strip()) for name in FILES} == set(known)
    assert len(known) == len(FILES)
    run.close()
