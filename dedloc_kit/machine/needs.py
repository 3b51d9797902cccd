"""How much memory a volunteer takes, as `benchmarks/footprint.py` measures it."""

FIXED_BYTES, BYTES_PER_PARAMETER = 750_000_000, 130
"""The most memory that a volunteer's processes take together: reached while it hands the training state to a newcomer,
otherwise it is about half (`benchmarks/footprint.py`; the first number has a task's libraries in it). Large activations
come on top."""
REPLICA_BYTES_PER_PARAMETER = 12
"""Of these: the replica, its gradients and the sum of them (4 bytes each), which a GPU holds if there is one. Where the
processor stands several times among the devices, each has its own."""
GPU_FIXED_BYTES, GPU_BYTES_PER_PARAMETER = 600_000_000, 18
"""On a GPU: CUDA itself, and the replica (4 bytes), its gradients (4), two sums of gradients (8), its weights in half
precision (2). Counted, not measured."""


def memory_needed(parameters: int, replicas: int = 1) -> int:
    """Bytes that a volunteer's processes take at most, beside the samples, with so many replicas on the processor."""
    return FIXED_BYTES + (BYTES_PER_PARAMETER + (replicas - 1) * REPLICA_BYTES_PER_PARAMETER) * parameters


def gpu_memory_needed(parameters: int) -> int:
    """Bytes of a GPU that trains, beside the samples."""
    return GPU_FIXED_BYTES + GPU_BYTES_PER_PARAMETER * parameters
