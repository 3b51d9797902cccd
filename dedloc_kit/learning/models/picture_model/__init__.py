"""Models that make codes of pictures, and pictures of codes; the organizer has one, volunteers read codes."""
