"""The numbers of a run's experts for Prometheus."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from dedloc_kit.dashboard.experts.schemas import Experts


def expert_metrics(experts: Experts) -> Iterator[Metric]:
    """Of each layer, and of all; nothing while they are not known."""
    if not experts.layers:
        return
    about = "Experts of the layer that are on so many machines."
    on_machines = GaugeMetricFamily("dedloc_experts", about, labels=["layer", "machines"])
    about = "How many times the mean the layer's most used expert got in the last global step."
    most = GaugeMetricFamily("dedloc_experts_most_over_mean", about, labels=["layer"])
    tokens = GaugeMetricFamily("dedloc_experts_tokens", "That went to the layer then.", labels=["layer"])
    for layer in experts.layers:
        for machines in range(3):
            on_machines.add_metric([str(layer.layer), str(machines)], layer.machines.count(machines))
        most.add_metric([str(layer.layer)], layer.most_over_mean)
        tokens.add_metric([str(layer.layer)], sum(layer.tokens))
    yield from (on_machines, most, tokens)
    hosts = sum(not host.organizer for host in experts.hosts)
    yield GaugeMetricFamily("dedloc_experts_hosts", "Volunteers that have experts.", hosts)
