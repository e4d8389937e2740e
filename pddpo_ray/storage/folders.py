"""Names of the files in a version's folder."""

WEIGHTS = "model.safetensors"
ADAPTER_BASE = "adapter_base.json"
"""In a version that is stored as an adapter: the artifact that it is to be added to."""
