"""The engine: fine-tunes and samples LoRA adapters of many runs on one frozen base model.

It speaks token ids only. It knows nothing of HTTP, databases, tenants or chat templates, and it is
the only floor that imports torch.
"""
