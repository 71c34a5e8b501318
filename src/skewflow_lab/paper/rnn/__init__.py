"""`skewflow reproduce rnn`: recurrent networks with an orthogonal transition."""
