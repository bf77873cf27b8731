"""Reports about the host: counters, Prometheus metrics and OpenTelemetry traces.

This room changes no state of the host. It imports `acts`, `session` and `runtime`, and `engine`,
which tests/architecture/test_rooms.py lists as a debt.
"""
