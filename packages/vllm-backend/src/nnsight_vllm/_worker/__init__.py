"""What runs in each worker of an engine of ours."""
