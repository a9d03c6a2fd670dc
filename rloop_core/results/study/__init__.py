"""A study: several arms over several seeds, and what they say together."""
