"""Pictures from files to tensors."""
