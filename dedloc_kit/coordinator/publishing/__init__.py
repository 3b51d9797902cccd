"""What a run puts on the Hub: training state, model card, a copy of the ledger."""
