"""Shipped fakes and checkers: probes, workloads, history checkers."""
