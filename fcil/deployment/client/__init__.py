"""A site's side of a real federation: its folder of images, its samples, its answers."""
