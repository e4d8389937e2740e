"""Sources of limits that need a model, a service or a person."""
