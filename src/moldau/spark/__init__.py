"""Topics as tables and streams of Spark: the source and sink `moldau`, and what stands on them."""
