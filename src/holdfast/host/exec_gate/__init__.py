"""The gate at exec depth: the kernel holds each new program until the policy has answered.

This package reads the waiting task, asks the policy, and verifies that the judged program ran. It
imports `acts`, `originators`, `people`, `policy`, `session`, `processes`, `storage` and `runtime`.
"""
