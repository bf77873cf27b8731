"""The terminal user interface of `holdfast attach`, on top of the client engine.

`state` decides (pure: events in, effects out), `loop` does the input and output. This room imports
`gone`, `link`, `question_pages`, `questions` and `signing`.
"""
