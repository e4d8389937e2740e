"""Language models as judges, and the endpoints that answer for them."""
