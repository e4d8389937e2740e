"""`python -m pddpo_ray` equals the console script `pddpo`."""

from pddpo_ray.cli.main import main

if __name__ == "__main__":
    main()
