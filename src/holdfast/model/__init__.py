"""The nouns: ids, facts, intents, errors, limits. No I/O, no clock, no threads."""
