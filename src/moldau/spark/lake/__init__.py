"""Tables of a lake (Parquet, Delta, Iceberg) in a folder or S3, and one way to commit to them."""
