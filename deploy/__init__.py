"""What the outside meets: endpoints, pages and cluster files. May import `actors` and `pddpo_ray`."""
