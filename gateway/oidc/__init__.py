"""Sign-in by OpenID Connect."""
