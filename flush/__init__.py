"""When appended bytes become durable, what is sealed, and the Spark side that reads it."""
