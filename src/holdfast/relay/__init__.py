"""The program that routes. It knows outer frames and nothing inside them: by import rule it cannot open a sealed message."""
