"""What commands about many things share: pages, empty lists, CSV, how runs are named."""
