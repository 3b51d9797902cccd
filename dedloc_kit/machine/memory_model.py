"""How much memory a volunteer takes, as `benchmarks/footprint.py` measures it."""

from dataclasses import dataclass

FIXED_BYTES, BYTES_PER_PARAMETER = 600_000_000, 70
"""The most memory that a volunteer's processes take together: reached while it hands the training state to a newcomer.
The first number has a task's libraries in it. Large activations come on top. Of the second are, in float32 and with
LAMB: the shared parameters (4 bytes) and both moments (8), the update of the largest tensor (1), the replica and its
gradients (8), their sum (4), the vector that is averaged (4), the averages that come (4), what compression lost of the
gradients, twice (8), and of the averages that this peer makes, with the sums (up to 6), four encoded averages (2; more
only of small models), the copy for a newcomer (12), and what the allocators keep."""
LENDER_BYTES_PER_PARAMETER, LENDER_STATE_BYTES = 10, 34
"""Of who only lends its line, in place of all these: what compression lost of the averages that it makes, twice, if it
makes all (8); the averages, encoded, as they come (1), and one to spare. Then what it takes to hold the state as well
and to hand it to a newcomer: 31 in all by `benchmarks/footprint.py --lender --give-state`, and 12 for that copy."""
SAVED_BY_8_BITS = 12
"""Of these, where `optimizer.state_dtype` is `8bit`: 6 of the moments and 6 of the copy for a newcomer."""
REPLICA_BYTES_PER_PARAMETER = 12
"""Of these: the replica, its gradients and their sum, which a GPU holds if there is one. Where the processor stands
several times among the devices, each has its own."""
HOST_BYTES_PER_PARAMETER = 40
"""Of an expert's, at a host at its peak: itself (4), two moments (8), all as it was before the last step, or as a
checkpoint that is on its way wants it (12), what it is told for the next two steps (8), what coding lost (4), and its
means on their way to who follows it (1 to 4 each). Measured with twelve experts of 1.6 million parameters: 38.5. One
that comes takes up to 36 beside them until it is here, and one that takes a step up to 36 meanwhile: one of each at a
time."""
CUDA_BYTES = 1_500_000_000
"""What CUDA takes of the machine's memory. An estimate."""
GPU_FIXED_BYTES, GPU_BYTES_PER_PARAMETER = 600_000_000, 18
"""On a GPU: CUDA itself, the replica (4 bytes), its gradients (4), their sum, twice while one is on its way (8), its
weights in half precision (2). Counted, not measured."""


def memory_needed(parameters: int, replicas: int = 1, state: str = "float32") -> int:
    """Bytes that a volunteer's processes take at most, beside the samples, with so many replicas on the processor; with
    none, all are on GPUs.

    :param state: `optimizer.state_dtype` of the run
    """
    fixed = FIXED_BYTES + (0 if replicas else CUDA_BYTES)
    each = BYTES_PER_PARAMETER + (replicas - 1) * REPLICA_BYTES_PER_PARAMETER
    return fixed + (each - (SAVED_BY_8_BITS if state == "8bit" else 0)) * parameters


def lender_memory_needed(parameters: int, gives: str | None = None) -> int:
    """Bytes that the processes of who only lends its line take at most.

    :param gives: `optimizer.state_dtype` of the run, if it gives the training state to newcomers
    """
    held = 0 if gives is None else LENDER_STATE_BYTES - (SAVED_BY_8_BITS if gives == "8bit" else 0)
    return FIXED_BYTES + (LENDER_BYTES_PER_PARAMETER + held) * parameters


def gpu_memory_needed(parameters: int) -> int:
    """Bytes of a GPU that trains, beside the samples."""
    return GPU_FIXED_BYTES + GPU_BYTES_PER_PARAMETER * parameters


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one stage.

    :ivar held: weights, gradients and what the optimizer remembers
    :ivar activations: of one microbatch
    :ivar processor: all that a volunteer takes that computes on its processor
    :ivar gpu, beside_gpu: of a GPU's memory, and of the machine's where that computes
    """

    held: int
    activations: int
    processor: int
    gpu: int
    beside_gpu: int

    @classmethod
    def of(cls, parameters: int, activations: int, state: str = "float32") -> "StageMemory":
        """:param state: `optimizer.state_dtype` of the run"""
        moments = 2 if state == "8bit" else 8
        return cls(
            held=(4 + 4 + moments) * parameters,
            activations=activations,
            processor=memory_needed(parameters, 1, state) + activations,
            gpu=gpu_memory_needed(parameters) + activations,
            beside_gpu=memory_needed(parameters, 0, state),
        )
