"""The backends of a run's parts in one record, filled in this process or with Ray groups."""
