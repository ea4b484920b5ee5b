"""Checkpoints in the layouts other libraries read: adapters for PEFT and vLLM, merged models."""
