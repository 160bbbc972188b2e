"""Who gets the card without asking: games and other programs that start, a renderer whose queue has
work, the machine that is about to sleep.
"""
