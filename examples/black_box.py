"""Fit a plane to points with outliers, by a loss without a useful gradient: the median distance.

Principal components minimise squares, so a few outliers change them. The median ignores outliers,
and evolution strategies need only its values.
"""

import torch

import skewflow as sf


def cloud(generator, d=8):
    """240 points near a plane in d dimensions, and 60 outliers along one other direction."""
    frame = sf.geometry.haar(d, generator=generator)
    inside = torch.randn(240, 2, generator=generator) @ frame[:, :2].mT
    outside = 8 * torch.randn(60, 1, generator=generator) @ frame[:, 2:3].mT
    points = torch.cat([inside, outside])
    return points + 0.05 * torch.randn(points.shape, generator=generator)


def main():
    """Start from the principal components, and print the median distance to the plane."""
    points = cloud(torch.Generator().manual_seed(0))

    def median_distance(params):
        V = params["V"]  # an orthonormal basis of the plane, 8 x 2
        return (points - points @ V @ V.mT).norm(dim=1).median().item()

    components = torch.linalg.svd(points, full_matrices=False).Vh[:2].mT
    start = {"V": components.contiguous()}
    result = sf.es.minimize(
        median_distance,
        start,
        orthogonal=["V"],
        generations=80,
        sigma=0.2,
        perturbation="geodesic",
    )
    print(f"median distance      {median_distance(start):.2f} -> {result.score:.2f}")
    print(f"orthogonality error  {sf.nn.orthogonality_error(result.params['V']):.0e}")


if __name__ == "__main__":
    main()
