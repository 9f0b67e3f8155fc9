"""What the connectors have in common, independent of any engine: keys, look-ups, plans, and copies."""
