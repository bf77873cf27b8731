"""The one client engine: what a face can do exists here first."""
