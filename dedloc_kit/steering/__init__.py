"""What the organizer decides while a run goes on: who may join, orders, and what needs their hand."""
