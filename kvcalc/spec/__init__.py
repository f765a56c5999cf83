"""From files to a ModelSpec: the YAML reader, the kinds, the catalogue."""
