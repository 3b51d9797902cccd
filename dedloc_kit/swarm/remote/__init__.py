"""What one peer computes for another: tensors on streams, and lines that stay open."""
