"""Find the poses of a robot on a ring from noisy relative measurements, and prove them optimal."""

import numpy as np

from skewflow.problems import PoseGraph, synchronize


def measured_ring(n=100, noise=0.05, seed=0):
    """Poses on a circle, measured to the next one and to the one ten places on."""
    draw = np.random.default_rng(seed)
    angles = 2 * np.pi * np.arange(n) / n
    positions = 10 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    rotations = turned(angles)
    i = np.tile(np.arange(n), 2)
    j = (i + np.repeat([1, 10], n)) % n
    seen = (rotations[i].mT @ (positions[j] - positions[i])[..., None])[..., 0]
    graph = PoseGraph(
        edges=np.stack([i, j], axis=1),
        rotations=turned(angles[j] - angles[i] + noise * draw.standard_normal(2 * n)),
        translations=seen + noise * draw.standard_normal(seen.shape),
        rotation_weights=np.full(2 * n, 1 / noise**2),
        translation_weights=np.full(2 * n, 1 / noise**2),
    )
    return graph, rotations, positions


def turned(angles):
    """Rotation matrices of the plane."""
    c, s = np.cos(angles), np.sin(angles)
    return np.stack([np.stack([c, -s], axis=-1), np.stack([s, c], axis=-1)], axis=-2)


def main():
    """Print the objective with its bound, and the error of the positions."""
    graph, rotations, positions = measured_ring()
    poses = synchronize(graph)
    print(f"objective {poses.value:.6f}, proven lower bound {poses.bound:.6f}")
    frame = rotations[0] @ poses.rotations[0].T  # poses are known up to one motion of the plane
    found = poses.translations @ frame.T + positions[0]
    error = np.sqrt(((found - positions) ** 2).sum(axis=1).mean())
    print(f"root mean square error of the positions {error:.3f} on a ring of radius 10")


if __name__ == "__main__":
    main()
