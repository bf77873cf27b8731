"""User interfaces on top of the client engine (`holdfast.client`), which has all the logic."""
