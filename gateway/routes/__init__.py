"""What is served at which path. Each module makes its routes from what it is given."""
