"""The aligned model behind an OpenAI-compatible endpoint, on Ray Serve and vLLM.

client -> Entrance (keys, limits, the draw of k, what each reply states)       deploy/serving/app.py
            |- Engine (vLLM and its own OpenAI layer; one policy at a time,    deploy/serving/engines/engine.py
                       or one adapter per policy)
journal: rounds, releases, keys                                               pddpo_ray/serving/
"""
