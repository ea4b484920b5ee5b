"""Storage: the home folder, blobs and folders of weights in it, and the database."""
