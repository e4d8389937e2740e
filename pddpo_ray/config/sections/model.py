"""The language model that is aligned, which of its weights are trained, and what the policy is besides them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pddpo_ray.config.sections.section import Strict


class FullParameters(Strict):
    """Every weight is trained; a version is a whole model."""

    kind: Literal["full"] = "full"
    """Tag of this variant."""


class LoraParameters(Strict):
    """Reference, reward policy and every policy are adapters on one shared base (reference: adapters off)."""

    kind: Literal["lora"] = "lora"
    """Tag of this variant."""
    rank: int = Field(16, ge=1)
    """Rank of the update."""
    alpha: float = Field(32.0, gt=0)
    """Scale: the update is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout in front of the adapters."""
    quantise: Literal["none", "nf4"] = "none"
    """nf4: the base is rounded to 4 bits once, and that model is the reference. Needs bitsandbytes."""


class ModelConfig(Strict):
    """The language model that is aligned."""

    reference: str | None = None
    """Folder in Hugging Face layout with weights and tokenizer, or owner/model on the hub; null: the world's own."""
    dtype: Literal["auto", "float32", "bfloat16"] = "float32"
    """Type of the weights while computing; losses are float32. auto: bfloat16 on a GPU from 100M parameters on."""
    compile: bool | Literal["auto"] = False
    """torch compiles the trainer's layers at their first use, for a minute. auto: above 1.5B parameters on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where training and inference run; auto: CUDA when there is a device."""
    parameters: Annotated[FullParameters | LoraParameters, Field(discriminator="kind")] = FullParameters()
    """What is trained."""

    @property
    def in_nf4(self) -> bool:
        """Whether adapters are trained over a base of 4 bits."""
        return isinstance(self.parameters, LoraParameters) and self.parameters.quantise == "nf4"


class PolicyConfig(Strict):
    """What the policy is, besides its weights."""

    temperature: float = Field(1.0, gt=0)
    """The policy is softmax(logits / temperature), with nothing cut off; so is the reference. Training, sampling,
    divergences and estimates are about it, and it is what an endpoint answers with by default. Other temperatures
    (`rollout.proposal_temperature`) are relative to it. A small pretrained model rambles at 1.0 and speaks at 0.7."""
