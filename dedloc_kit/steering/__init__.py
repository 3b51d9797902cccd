"""What the organizer decides while a run goes on: orders, and what needs their hand."""
