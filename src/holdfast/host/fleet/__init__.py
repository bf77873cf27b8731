"""Whether other machines can go on with sessions of this one: two checks of `holdfast doctor`.

They are apart from `doctor`, which other rooms import. This room imports `copies`, `doctor`,
`leases` and `runtime`.
"""
