"""Which layers of which version a server holds, how it gets them, and when it changes over."""
