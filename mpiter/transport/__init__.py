"""Memory that carries batches from workers to the consumer: the arena, and the slots in
it, one for each batch.
"""
