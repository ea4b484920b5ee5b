"""What commands use outside themselves: SDK clients, the server, the key service, the Hub."""
