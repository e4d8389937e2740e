"""Which answers get labelled: features, uncertainty, optimistic resampling (paper.md §15, §17).

Nothing here is ever served and nothing here sees a true score: the explorer knows hidden states of the frozen
reference and which pairs were compared, not what was answered.
"""
