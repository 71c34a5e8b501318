"""Align two point clouds by a rotation in 64 dimensions, with three block sizes s.

Minimise |A X - B|^2 / 2n over rotations X, where B is a rotated and noisy copy of A. The best
rotation is the polar factor of A^T B, so the distance to it shows how far each run has come. Small
blocks take more and cheaper steps; one block of all rows is the exact step.
"""

import torch

import skewflow as sf

RUNS = {2: 2000, 8: 500, 64: 60}
"""Steps for each block size."""


def problem(d, generator):
    """The clouds A and B of 4d points, and the rotation that aligns them best."""
    A = torch.randn(4 * d, d, generator=generator, dtype=torch.float64)
    rotation = sf.geometry.haar(d, special=True, generator=generator, dtype=torch.float64)
    noise = torch.randn(4 * d, d, generator=generator, dtype=torch.float64)
    B = A @ rotation + 0.05 * noise
    return A, B, sf.geometry.project(A.mT @ B)


def run(d=64, block_size=8, num_steps=500, seed=0):
    """Take the steps; returns the relative distances to the answer, and X."""
    generator = torch.Generator().manual_seed(seed)
    A, B, answer = problem(d, generator)
    X = sf.geometry.haar(d, special=True, generator=generator, dtype=torch.float64)
    X = torch.nn.Parameter(X)
    # A block of s rows turns (d - 1) / (s - 1) times further at the same rate.
    lr = 0.4 * (block_size - 1) / (d - 1)
    optimizer = sf.optim.FlowSGD([X], lr=lr, block_size=block_size)
    distances = []
    for _ in range(num_steps):
        distances.append(float((X.detach() - answer).norm() / answer.norm()))
        X.grad = A.mT @ (A @ X.detach() - B) / len(A)
        optimizer.step()
    distances.append(float((X.detach() - answer).norm() / answer.norm()))
    return distances, X


def main():
    """Print one line for each block size."""
    print("Procrustes on SO(64): distance to the known answer, before and after")
    print("  s  steps  planes turned a step  distance            orthogonality error")
    for s, num_steps in RUNS.items():
        distances, X = run(64, s, num_steps)
        distance = f"{distances[0]:.1e} -> {distances[-1]:.1e}"
        error = sf.nn.orthogonality_error(X)
        print(f"{s:>3}  {num_steps:>5}  {64 * (s - 1) // 2:>20}  {distance}  {error:.1e}")


if __name__ == "__main__":
    main()
