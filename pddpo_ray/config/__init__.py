"""What a run is made of: frozen sections, one subject a file; `recipe` joins them and `loading` reads them.

Defaults here are the values of the mathematics; recipes change what their world or model needs. Nothing heavy is
imported, so that `--help` stays instant. A value that follows from others is a property, not a setting.
"""

from pddpo_ray.config.certificate import CertificateConfig
from pddpo_ray.config.cluster import RayCluster
from pddpo_ray.config.data import DataConfig, ScratchReferenceConfig, SmallModelConfig
from pddpo_ray.config.dual import (
    AnytimeRule,
    DualConfig,
    FixedRule,
    InstalledRule,
    LogRule,
    NewtonRule,
    ProjectedRule,
    StepwiseRule,
)
from pddpo_ray.config.feedback import (
    FeedbackCommon,
    JudgeFeedback,
    MixedFeedback,
    ModelFeedback,
    PeopleFeedback,
    QueueConfig,
    ScoredFeedback,
    TellConfig,
    WorldFeedback,
)
from pddpo_ray.config.judge import EndpointConfig, JudgeConfig
from pddpo_ray.config.loading import load, recipe_names, to_yaml
from pddpo_ray.config.method import MethodConfig, PpoConfig
from pddpo_ray.config.model import LoraParameters, ModelConfig
from pddpo_ray.config.policy import PolicyConfig
from pddpo_ray.config.production import ProductionConfig
from pddpo_ray.config.prompts import PromptSetConfig
from pddpo_ray.config.recipe import Config
from pddpo_ray.config.rollout import TabularRollout, TransformersRollout, VllmRollout
from pddpo_ray.config.scorecard import ScorecardConfig
from pddpo_ray.config.scorers import ScorerConfig, ScorerFit, ScorerJob, ScorerTrainingConfig, StoredScorerConfig
from pddpo_ray.config.section import Strict
from pddpo_ray.config.sections import Policies
from pddpo_ray.config.trainer import (
    BudgetRefit,
    DeterminantRefit,
    FitConfig,
    GeometricRefit,
    Refit,
    TrainerConfig,
    UnionRefit,
)
from pddpo_ray.config.world import (
    DrawnFamilyConfig,
    FirstFamilyConfig,
    LogitLimitConfig,
    RateLimitConfig,
    TabularWorldConfig,
    TextReferenceConfig,
    TextWorldConfig,
)

__all__ = [
    "AnytimeRule",
    "BudgetRefit",
    "CertificateConfig",
    "Config",
    "DataConfig",
    "DeterminantRefit",
    "DrawnFamilyConfig",
    "DualConfig",
    "EndpointConfig",
    "FeedbackCommon",
    "FirstFamilyConfig",
    "FitConfig",
    "FixedRule",
    "GeometricRefit",
    "InstalledRule",
    "JudgeConfig",
    "JudgeFeedback",
    "LogRule",
    "LogitLimitConfig",
    "LoraParameters",
    "MethodConfig",
    "MixedFeedback",
    "ModelConfig",
    "ModelFeedback",
    "NewtonRule",
    "PeopleFeedback",
    "Policies",
    "PolicyConfig",
    "PpoConfig",
    "ProductionConfig",
    "ProjectedRule",
    "PromptSetConfig",
    "QueueConfig",
    "RateLimitConfig",
    "RayCluster",
    "Refit",
    "ScorecardConfig",
    "ScoredFeedback",
    "ScorerConfig",
    "ScorerFit",
    "ScorerJob",
    "ScorerTrainingConfig",
    "ScratchReferenceConfig",
    "SmallModelConfig",
    "StepwiseRule",
    "StoredScorerConfig",
    "Strict",
    "TabularRollout",
    "TabularWorldConfig",
    "TellConfig",
    "TextReferenceConfig",
    "TextWorldConfig",
    "TrainerConfig",
    "TransformersRollout",
    "UnionRefit",
    "VllmRollout",
    "WorldFeedback",
    "load",
    "recipe_names",
    "to_yaml",
]
