"""Forms that a frozen matrix may be kept in, and the products with each."""
