"""A site of a real federation: its folder of images, its samples and its answers."""
