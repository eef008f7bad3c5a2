"""The live overview of the cluster: brokers are sampled while somebody watches."""
