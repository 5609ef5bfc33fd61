"""Tools of MCP servers, which responses call for tenants that may use them."""
