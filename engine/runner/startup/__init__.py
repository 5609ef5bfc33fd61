"""From the settings to a runner that is ready: loaded, measured, its graphs captured."""
