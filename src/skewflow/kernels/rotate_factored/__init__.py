r"""The exact step for a gradient $AB^\top$ of low rank, without forming it or $\Omega$."""
