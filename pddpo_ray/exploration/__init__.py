"""Which answers get labelled: features, uncertainty, optimistic resampling (algorithms.md B3-B5).

Nothing here is ever served and nothing here sees a true score: the explorer knows hidden states of the frozen
reference and which pairs were compared, not what was answered.
"""
