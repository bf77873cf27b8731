"""The program that holds: one keeper per session, forked from a warm nursery. Stdlib only."""
