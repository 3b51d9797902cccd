"""Agreement on each global step: one chain of signed commits, decided by Paxos. State machines without I/O."""
