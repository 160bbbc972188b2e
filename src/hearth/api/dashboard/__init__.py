"""The page that an owner leaves open on a second screen: its files, and the stream of changes that it shows."""
