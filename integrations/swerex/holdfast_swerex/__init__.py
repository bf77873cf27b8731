"""SWE-ReX on Holdfast sessions, with the public Python API of Holdfast only."""

from holdfast_swerex.runtime import HoldfastConfig, HoldfastDeployment, HoldfastRuntime

__all__ = ["HoldfastConfig", "HoldfastDeployment", "HoldfastRuntime"]
