"""`skewflow reproduce vae`: autoencoders whose posterior is refined by flows (Sec. 1)."""
