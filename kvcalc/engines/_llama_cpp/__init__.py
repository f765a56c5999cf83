"""llama.cpp's rules, one pure function each, shared by the profiles `llama.cpp` and `ollama`.

Source of every rule unless it says otherwise: llama.cpp commit 0c1e57098bba43ac29e6e3b677cdceebdd22334f (2026-10-01),
described in docs/engines/llama-cpp.md.
"""
