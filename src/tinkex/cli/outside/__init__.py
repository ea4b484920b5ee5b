"""What commands reach outside for: SDK clients, the server floor, the key service, the Hub."""
