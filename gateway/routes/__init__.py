"""The routes. Each module makes those of one part of the API, from the parts that they need."""
