"""Scripts as others write them, run by a launcher in several processes: see `test_scripts`."""
