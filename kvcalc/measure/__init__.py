"""Measuring on this machine: the only modules that import torch, and only inside their functions."""
