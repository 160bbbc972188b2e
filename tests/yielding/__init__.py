"""Who gets the card without asking."""
