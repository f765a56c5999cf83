"""Pictures: plain data in, one self-contained page out. Nothing here knows a model or an engine."""
