"""The Ray shell: groups of workers that look like one object. May import `pddpo_ray`, never the other way round."""
