"""The reaper decides which idle sessions leave the memory; the drain decides the order of saving.

Pure: host/residency observes the sessions and carries out the decisions. This room imports no
other room.
"""
