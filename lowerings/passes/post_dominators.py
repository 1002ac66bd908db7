"""The post-dominator tree of operations, with their common ancestors in logarithmic time."""


class PostDominatorTree:
    """Which operation every use of another one leads to, for operations added from last to first.

    The parent of an operation is its immediate post-dominator: the first operation that all paths
    from it, along uses, go through. Beside it each has a longer way towards the root, so that a
    common ancestor is found in logarithmic time (Myers, An applicative random-access stack, 1983).

    Attributes:
        parents: the parent of each operation, by number; the root is its own.
        weights: of each operation, the sum of the weights on the way from it to the root.
    """

    def __init__(self, root: int) -> None:
        """Make a tree of its root alone."""
        self.parents, self.weights = {root: root}, {root: 0}
        self._jumps, self._depths = {root: root}, {root: 0}

    def add(self, node: int, parent: int, weight: int) -> None:
        """Add an operation under one that is in the tree."""
        jumps, depths, jump = self._jumps, self._depths, self._jumps[parent]
        is_as_long = depths[parent] - depths[jump] == depths[jump] - depths[jumps[jump]]
        self.parents[node] = parent
        self.weights[node] = self.weights[parent] + weight
        jumps[node] = jumps[jump] if is_as_long else parent
        depths[node] = depths[parent] + 1

    def common_ancestor(self, one: int, other: int) -> int:
        """The deepest operation that both are under, which may be one of the two."""
        if self._depths[one] < self._depths[other]:
            one, other = other, one
        one = self._ancestor_at(one, self._depths[other])
        while one != other:
            # They are as deep as each other, and so are the ends of their jumps.
            way = self._jumps if self._jumps[one] != self._jumps[other] else self.parents
            one, other = way[one], way[other]
        return one

    def _ancestor_at(self, node: int, depth: int) -> int:
        while self._depths[node] > depth:
            jump = self._jumps[node]
            node = jump if self._depths[jump] >= depth else self.parents[node]
        return node
