"""What the tile player and the lanes share: how data gets to a canvas, the hand-made script and style round it, the page."""
