"""What connectors for engines have in common, without any engine: keys, look-ups, plans, and copies."""
