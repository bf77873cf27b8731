"""Files of a session: the handlers, and the worker processes that touch the files.

`handlers` judges and records; `workers` starts worker processes and speaks with them; `worker`,
`session_root`, `looking` and `changing` run in such a process. This folder imports what
`host/requests` may import; modules of the worker import only `host/runtime/file_key`.
"""
