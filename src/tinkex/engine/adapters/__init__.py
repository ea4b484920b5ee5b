"""LoRA adapters: where factors lie, their products, their files."""
