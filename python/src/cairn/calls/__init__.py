"""One function for each call of the API: it returns a `Call`, which a client performs."""
