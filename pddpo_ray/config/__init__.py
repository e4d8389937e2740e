"""What a run is made of: frozen sections, one subject a file; `recipe` joins them and `loading` reads them.

Defaults here are the values of the mathematics; recipes change what their world or model needs. Nothing heavy is
imported, so that `--help` stays instant. A value that follows from others is a property, not a setting.
"""

from pddpo_ray.config.loading import load, recipe_names, to_yaml
from pddpo_ray.config.recipe import Config
from pddpo_ray.config.recipe_sections import Policies
from pddpo_ray.config.sections.cluster import RayCluster
from pddpo_ray.config.sections.data import DataConfig, SmallModelConfig
from pddpo_ray.config.sections.dual import (
    AnytimeRule,
    DualConfig,
    FixedRule,
    LogRule,
    NewtonRule,
    ProjectedRule,
)
from pddpo_ray.config.sections.feedback import (
    JudgeFeedback,
    MixedFeedback,
    ModelFeedback,
    QueueConfig,
    ScoredFeedback,
    TellConfig,
)
from pddpo_ray.config.sections.judge import EndpointConfig, JudgeConfig
from pddpo_ray.config.sections.model import LoraParameters, ModelConfig
from pddpo_ray.config.sections.rollout import TabularRollout, TransformersRollout, VllmRollout
from pddpo_ray.config.sections.scorers import (
    ScorerConfig,
    ScorerFit,
    ScorerJob,
    ScorerTrainingConfig,
    StoredScorerConfig,
)
from pddpo_ray.config.sections.section import Strict
from pddpo_ray.config.sections.trainer import (
    BudgetRefit,
    DeterminantRefit,
    FitConfig,
    GeometricRefit,
    Refit,
    TrainerConfig,
    UnionRefit,
)
from pddpo_ray.config.sections.world import (
    DrawnFamilyConfig,
    LogitLimitConfig,
    RateLimitConfig,
    TabularWorldConfig,
    TextReferenceConfig,
    TextWorldConfig,
)
