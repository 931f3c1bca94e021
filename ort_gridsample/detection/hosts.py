"""Choose the nodes that are fused: hosts, and the nodes that they absorb.

Detection finds which nodes an op can absorb (:attr:`.Match.absorbed`). Some of these fusions
exclude one another. A session, a patch and the execution provider all choose among them with
:func:`choose_hosts`, and add conditions such as an op that exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .match import Match


def choose_hosts(matches: Iterable[Match], can_fuse: Callable[[Match], bool]) -> list[Match]:
    """Return the matches whose op also does the work of other nodes.

    A deformable attention has precedence over its GridSamples. If it is fused, it absorbs those
    that no other node reads. It reads the grids of all, which therefore no GridSample absorbs.

    Args:
        matches: the matches of a model, deformable attentions first.
        can_fuse: whether a host can absorb its nodes. It is called once for each host that no other
            one excludes.
    """
    hosts = list[Match]()
    excluded = set[Match]()
    for match in matches:
        if not match.is_host or not excluded.isdisjoint((match, *match.absorbed)):
            continue
        if can_fuse(match):
            hosts.append(match)
            excluded.update(match.absorbed)
            for sample in match.samples:
                excluded.update(sample.absorbed)
    return hosts
