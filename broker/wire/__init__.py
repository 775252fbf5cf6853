"""The wire format of the bulk service, for the broker and for its Python client.

Owns how a batch of records travels (`frames`), how its large field gets in and out of a message
without a copy (`large_field`), the text that names a refused record (`record_refusal`), and the
names of the methods (`bulk_paths`). Knows neither side.
"""
