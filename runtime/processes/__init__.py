"""The processes of a job: how they find one another, agree on what they run, and notice a loss."""
