"""How the files of each data set are laid out, and how to read them: plain functions from a folder to `Content`."""
