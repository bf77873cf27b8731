"""Devices: the keys of an operator."""

from __future__ import annotations

from holdfast.core.contract.message import MachineAct, message


@message
class DeviceOwner:
    """The owner of the devices; null: the caller."""

    operator: str | None = None


@message
class DeviceConnection:
    """A connection of a device: `way` is local or relay."""

    way: str
    modality: str
    since: float


@message
class Device:
    """A device. `this`: whether the caller uses this device."""

    name: str
    operator: str
    key: str
    fingerprint: str
    added: int
    added_by: str
    added_from: str | None
    revoked: int | None
    revoked_by: str | None
    seen: int | None
    way: str | None
    connected: tuple[DeviceConnection, ...]
    this: bool


@message
class Devices:
    """The devices of an operator."""

    operator: str
    devices: tuple[Device, ...]


@message
class AddDevice(MachineAct):
    """A key that was made elsewhere."""

    operator: str | None = None
    device: str = ""
    key: str


@message
class RenameDevice(MachineAct):
    """A new name for a device."""

    operator: str | None = None
    device: str
    to: str


@message
class DeviceRenamed(Device):
    """The device, and the name before."""

    was: str


@message
class RevokeDevice(MachineAct):
    """`force`: also if no operator could manage the machine then.

    `grants`: revoke given rights too.
    """

    operator: str | None = None
    device: str
    force: bool = False
    grants: bool = False


@message
class AddedByDevice:
    """A device that the revoked device had added."""

    name: str | None
    revoked: bool


@message
class DeviceRevoked(Device):
    """The device, the number of devices left, and the devices that the revoked device had added."""

    left: int
    had_added: tuple[AddedByDevice, ...]
