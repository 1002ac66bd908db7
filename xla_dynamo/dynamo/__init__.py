"""The door: what Dynamo and AOTAutograd hand over, checked, decomposed and read."""
