"""The swarm: finding each other, averaging gradients, one optimizer step. The only place that imports hivemind."""
