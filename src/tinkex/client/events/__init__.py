"""Events of the SDK and the metrics made from them."""
