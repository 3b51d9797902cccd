"""What an organizer does before a run goes on by itself: new, tokenizer, check, launch."""
