"""The program `paddock-fetch`: reads headers of models far away, and brings their files into the cache of a node."""
