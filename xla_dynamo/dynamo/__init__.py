"""Check and read what Dynamo and AOTAutograd hand over, and repair it where we need to."""
