"""OpenHands' terminal tool on Holdfast sessions, with the public Python API of Holdfast only.

The import registers the tool `terminal`, so that agents and presets of OpenHands use it.
"""

from holdfast_openhands.session import HoldfastConfig, HoldfastSession
from holdfast_openhands.tool import HoldfastExecutor, HoldfastTerminalTool

__all__ = ["HoldfastConfig", "HoldfastExecutor", "HoldfastSession", "HoldfastTerminalTool"]
