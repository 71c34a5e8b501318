"""Cut a random graph in two, and bound how far the cut is from the largest one."""

import numpy as np

from skewflow.problems import max_cut


def random_edges(n=300, degree=8, seed=0):
    """Rows (i, j) of a random graph."""
    i, j = np.triu_indices(n, 1)
    chosen = np.random.default_rng(seed).random(len(i)) < degree / (n - 1)
    return np.stack([i[chosen], j[chosen]], axis=1)


def main():
    """Print the cut with its bound, and the gap of the relaxation."""
    edges = random_edges()
    cut = max_cut(edges)
    across = (cut.side[edges[:, 0]] != cut.side[edges[:, 1]]).sum()
    print(f"{across} of {len(edges)} edges are cut; no cut has more than {cut.bound:.2f}")
    print(f"the relaxation is solved to a relative gap of {cut.sdp.gap:.0e}")


if __name__ == "__main__":
    main()
