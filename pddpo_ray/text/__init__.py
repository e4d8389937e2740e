"""From messages to token ids and back, in one way for training, sampling, scoring, judging, reading and serving.

templates.py   how turns become one text: the model's own chat template, or a named one; what people read
renderer.py    one tokenizer with one template: ids of prompts and answers, where an answer ends
"""
