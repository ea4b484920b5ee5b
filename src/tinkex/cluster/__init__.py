"""Ray: engines as actors on the nodes of a cluster, behind the server's `Worker` interface."""
