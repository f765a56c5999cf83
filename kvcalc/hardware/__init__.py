"""What accelerators have, what engines need beside weights and cache, and how much is left for the cache."""
