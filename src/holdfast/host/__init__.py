"""The program that decides and serializes: one host per home."""
