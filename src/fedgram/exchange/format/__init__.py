"""The format of exchanged files: their bytes and header, keys and signatures, and numbers in fixed point."""
