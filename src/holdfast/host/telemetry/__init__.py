"""Reports about the host: counters, Prometheus metrics and OpenTelemetry traces.

This room imports the rooms that it reports on, and changes nothing in them.
"""
