"""The demo's recipe, shortened, with two ranks under ZeRO-2 and two vLLM engines that prefer nodes of their own."""

SMALL_DEMO = [
    *["seed=5", "offline.compare_rounds=0", "offline.pairs=100", "cluster.mode=ray"],
    *["trainer.fit.steps=3", "trainer.stages={first_reward: {steps: 6}, first_cost: {steps: 4}}"],
    *["feedback.responses=24", "explore.calibration=192"],
    *["explore.prompts=6", "explore.picks=2", "cluster.start_deadline_s=600.0"],
    *["trainer.engine=zero2", "trainer.workers=2", "trainer.threads=1"],
    *["rollout.engines=2", "cluster.placement=spread"],
]
