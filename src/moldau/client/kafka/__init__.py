"""Producer, Consumer and Admin on librdkafka, sync and for asyncio."""
