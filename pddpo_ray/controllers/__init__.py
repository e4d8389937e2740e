"""What the algorithm pages call: each part journals what it does and hands the work to a backend.

         page ──► Trainer ──► TrainerBackend      fits, scores            (torch here, or a Ray group)
           │      Rollout ──► RolloutEngine ...   samples, proven weights (vLLM here, or Ray actors)
           │      Feedback ─► Labeller            labels                  (world, model, judge, people)
           │      Dual ─────► DualOwner           the multiplier(s)       (here, or a named actor)
           └────  Prompts, Preferences, Exploration ─► journal and artifact store

A part is asked in the order of the page; a part whose phase is finished answers from the journal.
"""
