"""The gate at exec depth: the kernel holds each new program until the policy has answered.

This package reads the waiting task, asks the policy, and verifies that the judged program ran. It
imports `originators`, `acts`, `session`, `processes` and `runtime`.
"""
