"""Record batches: header view, checksum, record codec, compression."""
