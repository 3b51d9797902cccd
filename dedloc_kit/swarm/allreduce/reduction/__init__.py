"""Who reduces which values, what of them is kept, and what becomes of them."""
