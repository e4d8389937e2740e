"""What stands behind the parts of a run: one record, filled in this process or with Ray groups."""
